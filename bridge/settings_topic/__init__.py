"""The settings topic, read."""
