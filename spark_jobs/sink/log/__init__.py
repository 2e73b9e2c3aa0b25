"""The manifest topic: read, searched and appended to."""
