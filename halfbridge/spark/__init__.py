"""What users of Spark import: frames of the topics, the sink's `write_batch`, and its responder.

The names are loaded when they are used: importing the package costs neither PySpark nor a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.lazy import lazy_names

if TYPE_CHECKING:
    from halfbridge.spark.checker import SinkChecker, SinkResponder
    from halfbridge.spark.frames import decode_half, decode_op, read_messages, stream_messages
    from halfbridge.spark.payloads import (
        AvroPayload,
        JsonPayload,
        ProtobufPayload,
        RegistryPayload,
        decode_payload,
    )
    from halfbridge.spark.transactions import read_transactions
    from halfbridge.spark_jobs.sink import write_batch

__all__ = [
    "AvroPayload",
    "JsonPayload",
    "ProtobufPayload",
    "RegistryPayload",
    "SinkChecker",
    "SinkResponder",
    "decode_half",
    "decode_op",
    "decode_payload",
    "read_messages",
    "read_transactions",
    "stream_messages",
    "write_batch",
]

_MODULES = (
    "halfbridge.spark_jobs.sink",
    "halfbridge.spark.frames",
    "halfbridge.spark.payloads",
    "halfbridge.spark.transactions",
    "halfbridge.spark.checker",
)
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
