"""The log of a database as a source of messages."""
