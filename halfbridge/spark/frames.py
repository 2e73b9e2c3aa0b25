"""Frames for notebooks and jobs of one's own: messages, and decoded records of internal topics.

    from halfbridge.spark import read_messages

    orders = read_messages(spark, bootstrap_servers="localhost:9092", topics="orders")

Only columns and options are made here: nothing is read before an action, nothing needs a JVM in
this process, so a Spark Connect client can use it. docs/how-to/spark-notebook.md has the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from halfbridge.serde.headers import BORN_TIMESTAMP, HALF, MESSAGE_INDEX, TRANSACTION_ID
from halfbridge.serde.records import HalfMetadata, Op
from halfbridge.spark.payloads import decode_payload
from halfbridge.spark_jobs.audit.facts import decoded_halves, decoded_ops
from halfbridge.spark_jobs.reading.offsets import parse_position
from halfbridge.spark_jobs.reading.topics import Topics, read_topics, stream_topics
from halfbridge.spark_jobs.reading.wire import (
    header_map,
    with_identity,
    with_message_index,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from halfbridge.spark.payloads import Payload

_PLACE = ("topic", "partition", "offset", "timestamp")
# Fields of an op that have another name as a column.
_RENAMED = {"timestamp": "written_timestamp"}


def read_messages(
    spark: SparkSession,
    *,
    bootstrap_servers: str,
    topics: str | Iterable[str],
    kafka_options: Mapping[str, str] | None = None,
    start: str = "earliest",
    end: str = "latest",
    payload: Payload | None = None,
) -> DataFrame:
    """Return the messages that halfbridge has delivered to real topics, as consumers see them.

    Records of other producers are left out.

    Args:
        spark: Any session with the Kafka connector.
        bootstrap_servers: The cluster.
        topics: Names of real topics, or one name.
        kafka_options: Properties of Spark's (Java) Kafka client, such as security.protocol.
        start: `earliest`, a publish time (`2026-11-01T12:00Z`, `-24h`), or offsets as JSON.
        end: `latest`, a publish time, which is not part of the range itself, or offsets as JSON.
        payload: How values are written; None: they are not decoded.

    Returns:
        A row for each message, unique by (topic, partition, offset), in no order: transaction_id,
        message_index, born_timestamp, key, value, headers, topic, partition, offset, timestamp.
        With `payload` also what `decode_payload` adds.

    Raises:
        ValueError: an argument is wrong, such as `latest` as start; the caller corrects it. An
            action, which reads the topics, raises Spark's errors.
        RetriableError: the schema registry does not answer; call again later.
    """
    wanted = topics_of(topics)
    records = read_topics(
        spark,
        wanted,
        bootstrap_servers=bootstrap_servers,
        kafka=kafka_options,
        start=parse_position(start),
        end=parse_position(end),
    )
    return _with_payload(messages(records), payload, wanted)


def stream_messages(
    spark: SparkSession,
    *,
    bootstrap_servers: str,
    topics: str | Iterable[str],
    kafka_options: Mapping[str, str] | None = None,
    start: str = "earliest",
    max_offsets: int | None = None,
    payload: Payload | None = None,
) -> DataFrame:
    """Return `read_messages` as a stream: the same columns, of offsets that no batch had before.

    Args:
        spark: Any session with the Kafka connector.
        bootstrap_servers: The cluster.
        topics: Names of real topics, or one name.
        kafka_options: Properties of Spark's (Java) Kafka client, such as security.protocol.
        start: As of `read_messages`, or `latest`; has an effect only with a new checkpoint.
        max_offsets: Most offsets of a micro-batch, all partitions together; None: no limit.
        payload: As of `read_messages`.

    Raises:
        ValueError: an argument is wrong; the caller corrects it. The query raises Spark's errors.
        RetriableError: the schema registry does not answer; call again later.
    """
    wanted = topics_of(topics)
    records = stream_topics(
        spark,
        wanted,
        bootstrap_servers=bootstrap_servers,
        kafka=kafka_options,
        start=parse_position(start),
        max_offsets=max_offsets,
    )
    return _with_payload(messages(records), payload, wanted)


def messages(records: DataFrame) -> DataFrame:
    """Return the messages in rows of Spark's Kafka source, with the columns of `read_messages`."""
    headers = F.col("headers")
    users = without(headers, TRANSACTION_ID, BORN_TIMESTAMP, MESSAGE_INDEX)
    ours = with_identity(records).where(F.col("transaction_id").isNotNull())
    indexed = with_message_index(ours).withColumn("headers", users)
    return indexed.select(
        "transaction_id",
        "message_index",
        "born_timestamp",
        "key",
        "value",
        header_map(headers).alias("headers"),
        *_PLACE,
    )


def decode_half(frame: DataFrame) -> DataFrame:
    """Return rows of the half topic with the fields of RMQ_HALF as columns.

    Args:
        frame: Rows of Spark's Kafka source, batch or stream, read with `includeHeaders`.

    Returns:
        A row for each row, in its order: topic, partition, offset, timestamp, key, value, headers,
        and the fields. `error` says why a record cannot be decoded: then the fields are null.

    Raises:
        AnalysisException: Spark's: `frame` lacks a column; the caller reads it with headers.
    """
    decoded = decoded_halves(frame).withColumn("headers", without(F.col("headers"), HALF))
    return decoded.select(
        *_PLACE,
        "key",
        "value",
        header_map(F.col("headers")).alias("headers"),
        *_fields("meta", HalfMetadata._fields),
        F.col("unread").alias("error"),
    )


def decode_op(frame: DataFrame) -> DataFrame:
    """Return rows of the op topic with the op's fields as columns.

    Args:
        frame: Rows of Spark's Kafka source, batch or stream; headers are not needed.

    Returns:
        A row for each row, in its order: topic, partition, offset, timestamp, and the fields.
        `error` says why a record cannot be decoded: then the fields are null.

    Raises:
        AnalysisException: Spark's: `frame` lacks a column; the caller reads it from Kafka.
    """
    decoded = decoded_ops(frame)
    return decoded.select(*_PLACE, *_fields("op", Op._fields), F.col("unread").alias("error"))


def topics_of(topics: str | Iterable[str]) -> Topics:
    """Return the topics with these names, or this one name."""
    return Topics.of(*([topics] if isinstance(topics, str) else topics))


def _with_payload(frame: DataFrame, payload: Payload | None, topics: Topics) -> DataFrame:
    return frame if payload is None else decode_payload(frame, payload, topics=topics.names)


def _fields(struct: str, names: Iterable[str]) -> list[Column]:
    is_readable = F.col("unread").isNull()
    return [
        F.when(is_readable, F.col(struct)[name]).alias(_RENAMED.get(name, name)) for name in names
    ]
