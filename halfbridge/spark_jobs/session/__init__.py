"""Spark sessions, and the Java and jars that they need; the embedded broker needs both too."""
