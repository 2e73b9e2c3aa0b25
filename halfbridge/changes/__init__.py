"""Debezium's change events become messages: `decide` is pure, `service` reads and writes."""
