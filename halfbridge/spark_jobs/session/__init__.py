"""Local Spark sessions, and the jars that they need."""
