"""The dead-letter topic, as far as the sink reads it."""
