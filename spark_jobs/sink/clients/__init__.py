"""The sink's Kafka clients."""
