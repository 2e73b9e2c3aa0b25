"""The local message table, and the relay that sends each of its rows exactly once.

docs/adr/0013-the-relay-is-a-producer.md explains why; docs/how-to/message-table.md is the manual.
"""
