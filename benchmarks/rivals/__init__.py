"""The same loads on halfbridge, on RocketMQ, and on an outbox table with a relay."""
