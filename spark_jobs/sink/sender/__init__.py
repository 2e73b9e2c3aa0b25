"""Half messages and decisions on their way to Kafka."""
