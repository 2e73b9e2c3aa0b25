"""Dead letters, and what an operator does about them: resume, redeliver, export, purge (ADR 18).

letters, plans      pure: the records of the topic, grouped by transaction; the records to write
reading, writing    Kafka: the topic and the records that letters name; the kafka_txn
redoing             the commands: resume, redeliver, purge
describe            results as JSON and as sentences
"""
