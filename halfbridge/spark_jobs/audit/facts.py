"""Turns Kafka's rows into facts: the content of each record in a few narrow columns.

Keys, values and headers become a hash in the step that reads them, so that they are never stored or
shuffled. Every row of the four kinds of topics becomes exactly one fact. Unreadable records and
records of other producers become facts too.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.headers import (
    BORN_TIMESTAMP,
    DEAD,
    DEAD_MARK,
    MESSAGE_INDEX,
    TRANSACTION_ID,
)
from halfbridge.serde.identity import CHANGE_ID_PREFIX
from halfbridge.serde.limits import (
    METADATA_BYTES_MAX,
    OP_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
)
from halfbridge.serde.records import DeadReason
from halfbridge.serde.topics import SYSTEM
from halfbridge.spark_jobs.audit.half_headers import (
    half_bytes,
    half_hash,
    is_flawed,
    unread_half,
    user_bytes,
)
from halfbridge.spark_jobs.audit.times import append_ms, first_append_ms
from halfbridge.spark_jobs.reading.decisions import claimed_age_ms
from halfbridge.spark_jobs.reading.wire import (
    DEAD_SCHEMAS,
    HALF_SCHEMAS,
    OP_SCHEMAS,
    Encoded,
    content_hash,
    last_header,
    without,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

    from halfbridge.spark_jobs.reading.believed import Believed

# The kind of record that a fact is about. Numbers, because millions of them are compared.
IS_HALF = 0
IS_OP = 1
IS_REAL = 2
IS_LETTER = 3
IS_FOREIGN = 4  # a real record that another producer wrote
IS_JUNK_HALF = 5
IS_JUNK_OP = 6
IS_JUNK_LETTER = 7  # a record in the dead-letter topic that is no dead letter
IS_JUNK_COPY = 8  # a dead letter of an unreadable record
IS_MARK = 9  # a record in the dead-letter topic that says what an operator did about a dead letter
NAMES = {
    IS_HALF: "half",
    IS_OP: "op",
    IS_REAL: "real",
    IS_LETTER: "dead_letter",
    IS_FOREIGN: "foreign",
    IS_JUNK_HALF: "unreadable_half",
    IS_JUNK_OP: "unreadable_op",
    IS_JUNK_LETTER: "unreadable_dead_letter",
    IS_JUNK_COPY: "dead_letter_of_unreadable",
    IS_MARK: "mark_of_dead_letter",
}

# Columns of every frame of facts. `part` and `at` are partition and offset of the row. A "letter"
# is a dead letter.
FACTS = {
    "what": "int",
    "txn": "string",  # transaction id
    "ident": "long",  # hash of pair, resume count and producer group; with txn: one transaction
    "part": "int",
    "at": "long",
    "ms": "long",  # append time; of half and op NO_APPEND_MS where the writer set the time
    "pair": "int",  # number of half and op partition; of a letter that of its source record
    "resume": "int",
    "index": "int",  # message index
    "origin": "long",  # offset of the original half record; of a letter that of its source record
    "topic": "string",  # real topic
    "to_part": "int",  # real partition that is asked for; -1: any
    "hash": "long",  # of the parts that must be delivered unchanged
    "lane": "long",  # of a real record with a key: hash of topic, partition and key
    "flaw": "boolean",  # must never be delivered
    "bytes": "long",  # of a half: bytes that count towards the limit of its transaction
    "kind": "string",  # of an op; of a letter its reason; of junk why it cannot be read
    "source": "string",  # who wrote an op; of a letter the topic of its source record
    "age_ms": "long",  # of an op: the age that it must prove; 0: none
    "half_to": "long",  # half_offset of an op
    "count": "int",  # message_count of an op
    "first_ms": "long",  # of a half: append time of its original, or NO_APPEND_MS; of a real: birth
}


def decoded_halves(records: DataFrame, judge: Believed | None = None) -> DataFrame:
    """Return rows of the half topic with RMQ_HALF decoded, signatures judged by `judge`, if any.

    Returns:
        topic, partition, offset, timestamp, timestampType, key, value, headers; data binary:
        RMQ_HALF; meta struct: RMQ_HALF decoded; unread string: why the record cannot be read (null:
        readable).
    """
    prepared = records.select(
        *_PLACE, "key", "value", "headers", half_bytes(F.col("headers")).alias("data")
    )
    encoded = Encoded(F.col("data"), HALF_SCHEMAS, METADATA_BYTES_MAX)
    decoded = prepared.select("*", encoded.decoded().alias("meta"))
    unread = unread_half(encoded, F.col("meta"))
    if judge is not None:
        unread = F.coalesce(unread, judge.half_doubt(append_ms()))
    return decoded.select("*", unread.alias("unread"))


def decoded_ops(records: DataFrame, judge: Believed | None = None) -> DataFrame:
    """Return rows of the op topic decoded, signatures judged by `judge`, if any.

    Returns:
        topic, partition, offset, timestamp, timestampType, value; op struct: the op decoded; unread
        string: why the record cannot be read (null: readable).
    """
    encoded = Encoded(F.col("value"), OP_SCHEMAS, OP_BYTES_MAX)
    more = () if judge is None else ("key", "headers")
    decoded = records.select(*_PLACE, *more, "value", encoded.decoded().alias("op"))
    unread = encoded.unread(F.col("op"), "transaction_id")
    if judge is not None:
        unread = F.coalesce(unread, judge.op_doubt(append_ms()))
    return decoded.select("*", unread.alias("unread"))


def facts_of_halves(records: DataFrame, judge: Believed | None = None) -> DataFrame:
    """Return FACTS about the rows of the half topic; arguments as of `decoded_halves`."""
    meta = F.col("meta")
    has_flaw = is_flawed(F.col("headers"))
    size_bytes = user_bytes(F.col("key"), F.col("value"), F.col("headers"), has_flaw)
    is_too_large = (meta["message_index"] >= TRANSACTION_MESSAGES_MAX) | (
        size_bytes > TRANSACTION_BYTES_MAX
    )
    is_copy = meta["origin_offset"] >= 0
    return _facts(
        decoded_halves(records, judge),
        what=F.when(F.col("unread").isNull(), IS_HALF).otherwise(IS_JUNK_HALF),
        txn=_if_read(meta["transaction_id"]),
        ident=_if_read(_identity(F.col("partition"), meta)),
        pair=F.col("partition"),
        resume=meta["resume_count"],
        index=meta["message_index"],
        origin=F.when(is_copy, meta["origin_offset"]).otherwise(F.col("offset")),
        topic=_if_read(meta["real_topic"]),
        to_part=meta["real_partition"],
        hash=half_hash(meta, F.col("headers")),
        flaw=has_flaw | is_too_large,
        bytes=size_bytes,
        kind=F.col("unread"),
        ms=append_ms(),
        first_ms=first_append_ms(meta),
    )


def facts_of_ops(records: DataFrame, judge: Believed | None = None) -> DataFrame:
    """Return FACTS about the rows of the op topic; arguments as of `decoded_ops`."""
    op = F.col("op")
    return _facts(
        decoded_ops(records, judge),
        what=F.when(F.col("unread").isNull(), IS_OP).otherwise(IS_JUNK_OP),
        txn=_if_read(op["transaction_id"]),
        ident=_if_read(_identity(F.col("partition"), op)),
        pair=F.col("partition"),
        resume=op["resume_count"],
        kind=F.coalesce(F.col("unread"), op["kind"]),
        ms=append_ms(),
        source=op["source"],
        age_ms=claimed_age_ms(op["kind"], op["source"], op["age_ms"]),
        half_to=op["half_offset"],
        count=op["message_count"],
    )


def facts_of_reals(records: DataFrame) -> DataFrame:
    """Return FACTS about the rows of real topics (in Kafka's columns)."""
    headers = F.col("headers")
    named = F.nullif(
        F.try_validate_utf8(last_header(headers, TRANSACTION_ID).cast("string")), F.lit("")
    )
    # Of a relay of changes: no half message says anything about it.
    named = F.when(~named.startswith(CHANGE_ID_PREFIX), named)
    born = F.coalesce(last_header(headers, BORN_TIMESTAMP).cast("string"), F.lit(""))
    prepared = records.select(
        *_PLACE, "key", "value", "headers", named.alias("named"), born.alias("born")
    )
    return _facts(
        prepared,
        what=F.when(F.col("named").isNull(), IS_FOREIGN).otherwise(IS_REAL),
        txn=F.col("named"),
        topic=F.col("topic"),
        hash=content_hash(
            topic=F.col("topic"),
            key=F.col("key"),
            value=F.col("value"),
            headers=without(headers, TRANSACTION_ID, BORN_TIMESTAMP, MESSAGE_INDEX),
            born=F.col("born"),
        ),
        lane=F.when(F.col("key").isNotNull(), F.xxhash64("topic", "partition", "key")),
        first_ms=F.col("born").try_cast("long"),
    )


def facts_of_letters(records: DataFrame, judge: Believed | None = None) -> DataFrame:
    """Return FACTS about the rows of the dead-letter topic, which have Kafka's columns.

    Where records are judged (`judge`), a dead letter INVALID may be of a half record that can be
    read, and is not believed: it is a dead letter of an unreadable record too.

    A row is a dead letter (IS_LETTER), a dead letter of an unreadable record (IS_JUNK_COPY), a mark
    that an operator set (IS_MARK), or a row that is none of these (IS_JUNK_LETTER).
    """
    headers = F.col("headers")
    last = F.try_element_at(headers, F.lit(-1))
    rest = F.slice(headers, 1, F.greatest(F.size(headers) - 1, F.lit(0)))
    prepared = records.select(
        *_PLACE,
        "key",
        "value",
        F.when(last["key"] == DEAD, last["value"]).alias("letter_data"),
        (last["key"] == DEAD_MARK).alias("is_mark"),
        rest.alias("headers"),
        half_bytes(rest).alias("data"),
    )
    letter_encoded = Encoded(F.col("letter_data"), DEAD_SCHEMAS)
    encoded = Encoded(F.col("data"), HALF_SCHEMAS, METADATA_BYTES_MAX)
    decoded = prepared.select(
        "*", letter_encoded.decoded().alias("letter"), encoded.decoded().alias("meta")
    )
    letter, meta = F.col("letter"), F.col("meta")
    judged = decoded.select(
        "*",
        letter_encoded.unread(letter, "reason").alias("no_letter"),
        unread_half(encoded, meta).alias("unread"),
    )
    is_letter = F.col("no_letter").isNull()
    is_invalid = letter["reason"] == DeadReason.INVALID.value
    about_half = is_letter & F.col("unread").isNull()
    if judge is not None:
        about_half = about_half & ~is_invalid
    # A change event, which a relay of changes could not send.
    is_change = ~letter["source_topic"].contains(SYSTEM)
    return _facts(
        judged,
        what=F.when(F.col("is_mark"), IS_MARK)
        .when(about_half, IS_LETTER)
        .when(is_letter & (is_invalid | is_change), IS_JUNK_COPY)
        .otherwise(IS_JUNK_LETTER),
        txn=F.when(about_half, meta["transaction_id"]),
        ident=F.when(about_half, _identity(letter["source_partition"], meta)),
        pair=letter["source_partition"],
        resume=meta["resume_count"],
        index=meta["message_index"],
        origin=letter["source_offset"],
        topic=meta["real_topic"],
        # A stub refers to its source record, and does not contain it.
        hash=F.when(~letter["is_stub"], half_hash(meta, F.col("headers"))),
        kind=F.coalesce(F.col("no_letter"), letter["reason"]),
        source=letter["source_topic"],
    )


def all_facts(*frames: DataFrame) -> DataFrame:
    """Return the rows of frames that have the columns FACTS."""
    return reduce(DataFrame.unionAll, frames)


_PLACE = ("topic", "partition", "offset", "timestamp", "timestampType")


def _facts(frame: DataFrame, **given: Column) -> DataFrame:
    """Return FACTS from `given`; columns that are not given are null."""
    given = {
        "part": F.col("partition"),
        "at": F.col("offset"),
        "ms": F.unix_millis("timestamp"),
        **given,
    }
    return frame.select(
        *(given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in FACTS.items())
    )


def _if_read(column: Column) -> Column:
    return F.when(F.col("unread").isNull(), column)


def _identity(pair: Column, record: Column) -> Column:
    return F.xxhash64(pair, record["resume_count"], record["producer_group"])
