"""The client that asks brokers, made so that no thread of its own ever destroys it."""
