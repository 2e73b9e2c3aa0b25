"""What needs the producer client and the Spark sink together: answering checks of the sink."""

from halfbridge.spark.checker import SinkChecker, SinkResponder

__all__ = ["SinkChecker", "SinkResponder"]
