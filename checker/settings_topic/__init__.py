"""The settings topic, read and written."""
