"""The bench: client, daemon and consumer as separate processes, with one broker."""
