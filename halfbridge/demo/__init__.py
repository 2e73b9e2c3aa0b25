"""The demo: 2,000 orders on a real broker, with rollbacks, killed services, missing decisions."""
