"""The dead-letter topic, as relays read it."""
