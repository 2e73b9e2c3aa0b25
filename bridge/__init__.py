"""The producer client: half messages, decisions, and the answers to checks."""
