"""Which rows of an ingested table say the same thing twice. Pure.

A real record says in `__messageIndex__` which message of its transaction it is, where the daemon is
new enough and the index is above 0. A record without that header is the first message, or was
delivered by an older daemon; what else it says is enough to tell a message that came twice from
two equal ones.

- **The same record twice**: topic, partition, offset, time and bytes are equal. Two ingestions
  overlapped.
- **The same message twice**: transaction, topic and bytes are equal, but not the publish time. The
  daemon delivers a transaction whole, in one kafka_txn, under one publish time, so equal messages
  of one delivery are messages of their own (the user sent them), and equal messages of two
  deliveries are the same one, delivered again. The n-th of them in one delivery is the n-th in the
  other. This is what `checker init --accept-duplicates` may leave. The index is among the bytes:
  messages with different ones are never the same, and what an older daemon delivered first and a
  newer one again is kept twice.

Where a broker has refused the daemon's clock (`checker.stamps`), records of one delivery may differ
by milliseconds, and then equal messages without an index are taken for one delivered again.

Where the broker sets the time (LogAppendTime), deliveries cannot be told apart: rows without an
index are only compared as records, since dropping a message would be worse than having it twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.headers import MESSAGE_INDEX
from halfbridge.spark_jobs.transforms import header_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

SAME_RECORD = "same record"
SAME_MESSAGE = "same message"

_CREATE_TIME = 0
_PLACE = ("topic", "partition", "offset")
_DIGESTS = ("_key", "_value", "_headers")
# One transaction, or one record that has none: what all comparisons stay within, so that the rows
# are shuffled once, and records of other producers do not all meet in one task.
_UNIT = "_unit"
_COPY = "_copy"


def with_duplicates_marked(rows: DataFrame) -> DataFrame:
    """Return all rows, each with its message index, or the word for what it repeats.

    Args:
        rows: An ingested table: topic, partition, offset, timestamp, timestamp_type, key, value,
            headers, transaction_id, quarantined and any others.

    Returns:
        The same columns, then duplicate string (SAME_RECORD, SAME_MESSAGE; null: to be kept) and
        message_index long: 0, 1, ... among the rows to be kept of a transaction, by topic,
        partition and offset; within a partition that is the order in which they were sent. (It is
        not the header's: rows of older daemons have none.) Null for duplicates and for records
        without a transaction. (transaction_id, message_index) is unique, and does not depend on
        how often and in which order rows came.
    """
    record = (*_PLACE, "timestamp", *_DIGESTS)
    content = ("topic", *_DIGESTS)
    place = [F.col(name) for name in (*_PLACE, "timestamp")]
    # One of the two may have been ingested when its schema was not known.
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
    """Return 1, 2, ... over a window, leaving out records that were numbered already."""
    first = F.when(~F.col("_again"), 1)
    return F.sum(first).over(window.rowsBetween(Window.unboundedPreceding, 0))
