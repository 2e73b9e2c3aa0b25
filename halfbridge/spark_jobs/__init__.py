"""Spark jobs on halfbridge's topics, and the exactly-once sink.

- Commands: `audit`, `dedupe`, `ingest`, `replay`.
- The sink `format("txn_half")`: `sink`.
- Shared by them: `reading` (topics as columns), `tables` (files, checkpoints), `jobs` (options,
  progress), `session` (Spark, Java and jars; the testkit uses the latter two).
"""
