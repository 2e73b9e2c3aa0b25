"""The demo: 2,000 orders on a real broker, some of them hit by rollbacks, kills and silence."""
