"""Questions to the brokers."""
