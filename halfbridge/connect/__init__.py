"""Kafka Connect with Debezium's connectors: configuration, and calls of its REST interface."""
