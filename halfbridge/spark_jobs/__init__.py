"""Spark on halfbridge's topics, and what it shares with the testkit: Java and jars."""
