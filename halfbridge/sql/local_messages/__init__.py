"""The local message table, and the relay that turns its rows into messages, each exactly once.

docs/adr/0013-the-relay-is-a-producer.md has the argument, docs/local-transactions.md the use.
"""
