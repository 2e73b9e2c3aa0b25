"""Dead letters, and what an operator does about them: resume, redeliver, export, purge (ADR 18).

letters, transactions, plans     pure: what stands in the topic, whose it is, what to write
reading, sources, writing        Kafka: the topic, the records that letters name, the kafka_txn
actions                          what the commands call
"""
