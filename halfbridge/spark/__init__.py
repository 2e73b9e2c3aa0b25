"""What users of Spark import: the sink's `write_batch`, and answering checks of the sink."""

from halfbridge.spark.checker import SinkChecker, SinkResponder
from halfbridge.spark_jobs.sink import write_batch

__all__ = ["SinkChecker", "SinkResponder", "write_batch"]
