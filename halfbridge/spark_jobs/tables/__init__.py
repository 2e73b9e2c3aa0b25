"""Tables that jobs write and read, and the files and checkpoints beside them."""

from halfbridge.spark_jobs.tables.delta import read_table

__all__ = ["read_table"]
