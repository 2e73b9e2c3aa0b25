"""Finds duplicate rows of an ingested table. Pure.

A real record carries the index of its message in the header `__messageIndex__`. A record without
that header is the first message of its transaction, or was delivered by an older daemon. The other
columns of the record still tell a message that was delivered twice from two equal messages.

- **The same record**: topic, partition, offset, timestamp and bytes are equal. Two ingestions
  overlapped.
- **The same message**: transaction, topic and bytes are equal, but the timestamps differ. The
  daemon delivers a transaction in one kafka_txn, with one timestamp. So equal messages of one
  delivery are different messages that the user sent, and equal messages of two deliveries are one
  message that was delivered twice. Example: two equal messages have the timestamp 10:00, and two
  more have 10:05. The first of 10:05 is the first of 10:00, delivered again; so is the second.
  `checker init --accept-duplicates` may cause such deliveries.

`__messageIndex__` is among the compared bytes. So messages with different indices are never the
same. A message that an older daemon delivered first and a newer daemon again is kept twice.

After a broker has refused the daemon's timestamps (`checker.loop.stamps`), the records of one
delivery may differ by milliseconds. Equal messages without an index are then taken for repeated
deliveries.

With timestamps of the broker (LogAppendTime), deliveries cannot be distinguished. Rows without an
index are then compared as records only: a duplicate message is better than a lost one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.headers import MESSAGE_INDEX
from halfbridge.spark_jobs.reading.transforms import header_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

SAME_RECORD = "same record"
SAME_MESSAGE = "same message"

_CREATE_TIME = 0  # Kafka's code of the timestamp type, as Spark's column has it
_PLACE = ("topic", "partition", "offset")
_DIGESTS = ("_key", "_value", "_headers")
# A transaction, or a single record without a transaction. Rows are compared within a unit only, so
# that they are shuffled once, and the records of other producers are spread over all tasks.
_UNIT = "_unit"
_COPY = "_copy"


def with_duplicates_marked(rows: DataFrame) -> DataFrame:
    """Return all rows, each with its message index or marked as a duplicate.

    Args:
        rows: An ingested table: topic, partition, offset, timestamp, timestamp_type, key, value,
            headers, transaction_id, quarantined and any other columns.

    Returns:
        The columns of `rows`, then duplicate string and message_index long. duplicate is
        SAME_RECORD, SAME_MESSAGE, or null for a row to keep. message_index is 0, 1, ... among the
        kept rows of a transaction, by topic, partition and offset; within a partition that is the
        order in which the messages were sent. message_index is null for duplicates and for records
        without a transaction. It is not the index in the header, which rows of older daemons lack.
        (transaction_id, message_index) is unique, and independent of the order of the rows.
    """
    record = (*_PLACE, "timestamp", *_DIGESTS)
    content = ("topic", *_DIGESTS)
    place = [F.col(name) for name in (*_PLACE, "timestamp")]
    # One row of the two may be quarantined: its schema was not known when it was ingested.
    same_record = Window.partitionBy(_UNIT, *record).orderBy("quarantined")
    delivery = Window.partitionBy(_UNIT, "timestamp", *content).orderBy(*place)
    same_message = Window.partitionBy(_UNIT, *content, _COPY).orderBy(*place)
    transaction = Window.partitionBy(_UNIT).orderBy(*place, *_DIGESTS, "_again")
    kept = F.col("duplicate").isNull()
    by_time = F.col("timestamp_type") == _CREATE_TIME
    by_index = header_text(MESSAGE_INDEX).isNotNull()
    can_tell = F.col("transaction_id").isNotNull() & (by_time | by_index)
    counted = F.sum(F.when(kept, 1)).over(transaction.rowsBetween(Window.unboundedPreceding, 0))
    return (
        rows.withColumns(_helpers())
        .repartition(_UNIT)
        .withColumn("_again", F.row_number().over(same_record) > 1)
        .withColumn(_COPY, _numbered(delivery))
        .withColumn("_repeated", can_tell & (_numbered(same_message) > 1))
        .withColumn(
            "duplicate",
            F.when(F.col("_again"), SAME_RECORD).when(F.col("_repeated"), SAME_MESSAGE),
        )
        .withColumn(
            "message_index", F.when(kept & F.col("transaction_id").isNotNull(), counted - 1)
        )
        .select(*rows.columns, "duplicate", "message_index")
    )


def _helpers() -> dict[str, Column]:
    alone = F.concat_ws("/", *(F.col(name).cast("string") for name in _PLACE))
    return {
        _UNIT: F.coalesce("transaction_id", alone),
        "_key": F.sha2("key", 256),
        "_value": F.sha2("value", 256),
        "_headers": F.sha2(F.to_json("headers").cast("binary"), 256),
    }


def _numbered(window: WindowSpec) -> Column:
    """Return 1, 2, ... over a window, without counting repeated records."""
    first = F.when(~F.col("_again"), 1)
    return F.sum(first).over(window.rowsBetween(Window.unboundedPreceding, 0))
