"""The bench: client, daemon and consumer as processes of their own, against one broker."""
