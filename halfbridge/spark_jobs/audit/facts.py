"""Turns Kafka's rows into facts: the content of each record in a few narrow columns.

Keys, values and headers become a hash in the step that reads them, so that they are never stored or
shuffled. Every row of the four kinds of topics becomes exactly one fact. Unreadable records and
records of other producers become facts too.

The rules for the headers of a half record are those of serde.headers.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from halfbridge.serde.headers import (
    BORN_TIMESTAMP,
    CONTEXT,
    DEAD,
    DEAD_MARK,
    HALF,
    INTERNAL,
    MESSAGE_INDEX,
    RESERVED,
    SIGN,
    TRANSACTION_ID,
)
from halfbridge.serde.identity import CHANGE_ID_PREFIX
from halfbridge.serde.limits import (
    IDENTITY_BYTES_MAX,
    METADATA_BYTES_MAX,
    OP_BYTES_MAX,
    ORIGINAL_METADATA_BYTES_MAX,
    SIGNATURE_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
)
from halfbridge.serde.protocol import NO_APPEND_MS
from halfbridge.serde.records import DeadReason
from halfbridge.serde.topics import DEAD_LETTERS, SYSTEM
from halfbridge.spark_jobs.reading.decisions import claimed_age_ms
from halfbridge.spark_jobs.reading.topics import LOG_APPEND_TIME
from halfbridge.spark_jobs.reading.wire import (
    BROKEN,
    DEAD_SCHEMAS,
    HALF_SCHEMAS,
    OP_SCHEMAS,
    TOO_LONG,
    Encoded,
    content_hash,
    first_header,
    header_text,
    last_header,
    without,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

    from halfbridge.spark_jobs.reading.decisions import SignatureJudge

# The kind of record that a fact is about. Numbers, because millions of them are compared.
IS_HALF = 0
IS_OP = 1
IS_REAL = 2
IS_DEAD_LETTER = 3
IS_FOREIGN = 4  # a real record that another producer wrote
IS_UNREADABLE_HALF = 5
IS_UNREADABLE_OP = 6
IS_UNREADABLE_DEAD_LETTER = 7  # a record in the dead-letter topic that is no dead letter
IS_DEAD_LETTER_OF_UNREADABLE = 8  # a dead letter of an unreadable record
IS_MARK = 9  # a record in the dead-letter topic that says what an operator did about a dead letter
NAMES = {
    IS_HALF: "half",
    IS_OP: "op",
    IS_REAL: "real",
    IS_DEAD_LETTER: "dead_letter",
    IS_FOREIGN: "foreign",
    IS_UNREADABLE_HALF: "unreadable_half",
    IS_UNREADABLE_OP: "unreadable_op",
    IS_UNREADABLE_DEAD_LETTER: "unreadable_dead_letter",
    IS_DEAD_LETTER_OF_UNREADABLE: "dead_letter_of_unreadable",
    IS_MARK: "mark_of_dead_letter",
}
# Columns of every frame of facts. `partition` and `offset` are those of the row.
FACTS = {
    "record_type": "int",
    "transaction_id": "string",
    "life_hash": "long",  # hash of pair, resume count and producer group: with the id, one life
    "partition": "int",
    "offset": "long",
    "append_ms": "long",  # of half and op NO_APPEND_MS where the writer set the time
    "pair": "int",  # number of half and op partition; of a dead letter that of its source
    "resume_count": "int",
    "message_index": "int",
    "origin_offset": "long",  # of the original half record; of a dead letter that of its source
    "topic": "string",  # real topic
    "requested_partition": "int",  # real partition that the message asks for; -1: any
    "content_hash": "long",  # of the parts that must be delivered unchanged
    "order_key": "long",  # of a real record with a key: hash of topic, partition and key
    "is_flawed": "boolean",  # must never be delivered
    "size_bytes": "long",  # of a half: bytes that count towards the limit of its transaction
    "kind": "string",  # of an op; of a dead letter its reason; else why it cannot be read
    "source": "string",  # who wrote an op; of a dead letter the topic of its source
    "age_ms": "long",  # of an op: the age that it must prove; 0: none
    "op_half_offset": "long",  # of an op: its half_offset
    "message_count": "int",  # of an op
    "first_ms": "long",  # of a half: append time of its original, or NO_APPEND_MS; of a real: birth
}


def decoded_halves(records: DataFrame, judge: SignatureJudge | None = None) -> DataFrame:
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


def decoded_ops(records: DataFrame, judge: SignatureJudge | None = None) -> DataFrame:
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


def facts_of_halves(records: DataFrame, judge: SignatureJudge | None = None) -> DataFrame:
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
        record_type=F.when(F.col("unread").isNull(), IS_HALF).otherwise(IS_UNREADABLE_HALF),
        transaction_id=_if_read(meta["transaction_id"]),
        life_hash=_if_read(_life_hash_of(F.col("partition"), meta)),
        pair=F.col("partition"),
        resume_count=meta["resume_count"],
        message_index=meta["message_index"],
        origin_offset=F.when(is_copy, meta["origin_offset"]).otherwise(F.col("offset")),
        topic=_if_read(meta["real_topic"]),
        requested_partition=meta["real_partition"],
        content_hash=half_hash(meta, F.col("headers")),
        is_flawed=has_flaw | is_too_large,
        size_bytes=size_bytes,
        kind=F.col("unread"),
        append_ms=append_ms(),
        first_ms=first_append_ms(meta),
    )


def facts_of_ops(records: DataFrame, judge: SignatureJudge | None = None) -> DataFrame:
    """Return FACTS about the rows of the op topic; arguments as of `decoded_ops`."""
    op = F.col("op")
    return _facts(
        decoded_ops(records, judge),
        record_type=F.when(F.col("unread").isNull(), IS_OP).otherwise(IS_UNREADABLE_OP),
        transaction_id=_if_read(op["transaction_id"]),
        life_hash=_if_read(_life_hash_of(F.col("partition"), op)),
        pair=F.col("partition"),
        resume_count=op["resume_count"],
        kind=F.coalesce(F.col("unread"), op["kind"]),
        append_ms=append_ms(),
        source=op["source"],
        age_ms=claimed_age_ms(op["kind"], op["source"], op["age_ms"]),
        op_half_offset=op["half_offset"],
        message_count=op["message_count"],
    )


def facts_of_reals(records: DataFrame) -> DataFrame:
    """Return FACTS about the rows of real topics (in Kafka's columns)."""
    headers = F.col("headers")
    named = header_text(TRANSACTION_ID)
    # A record of a relay of changes has no half message.
    named = F.when(~named.startswith(CHANGE_ID_PREFIX), named)
    born = F.coalesce(last_header(headers, BORN_TIMESTAMP).cast("string"), F.lit(""))
    prepared = records.select(
        *_PLACE, "key", "value", "headers", named.alias("named"), born.alias("born")
    )
    return _facts(
        prepared,
        record_type=F.when(F.col("named").isNull(), IS_FOREIGN).otherwise(IS_REAL),
        transaction_id=F.col("named"),
        topic=F.col("topic"),
        content_hash=content_hash(
            topic=F.col("topic"),
            key=F.col("key"),
            value=F.col("value"),
            headers=without(headers, TRANSACTION_ID, BORN_TIMESTAMP, MESSAGE_INDEX),
            born=F.col("born"),
        ),
        order_key=F.when(F.col("key").isNotNull(), F.xxhash64("topic", "partition", "key")),
        first_ms=F.expr("try_cast(born AS BIGINT)"),
    )


def facts_of_dead_letters(records: DataFrame, judge: SignatureJudge | None = None) -> DataFrame:
    """Return FACTS about the rows of the dead-letter topic, which have Kafka's columns.

    Where records are judged (`judge`), a dead letter INVALID may be of a half record that can be
    read, and is not believed: it is a dead letter of an unreadable record too.

    A row is IS_DEAD_LETTER, IS_DEAD_LETTER_OF_UNREADABLE, IS_MARK (which an operator set), or else
    IS_UNREADABLE_DEAD_LETTER.
    """
    headers = F.col("headers")
    last = F.try_element_at(headers, F.lit(-1))
    rest = F.slice(headers, 1, F.greatest(F.size(headers) - 1, F.lit(0)))
    prepared = records.select(
        *_PLACE,
        "key",
        "value",
        F.when(last["key"] == DEAD, last["value"]).alias("dead_letter_data"),
        (last["key"] == DEAD_MARK).alias("is_mark"),
        rest.alias("headers"),
        half_bytes(rest).alias("data"),
    )
    letter_encoded = Encoded(F.col("dead_letter_data"), DEAD_SCHEMAS)
    encoded = Encoded(F.col("data"), HALF_SCHEMAS, METADATA_BYTES_MAX)
    decoded = prepared.select(
        "*", letter_encoded.decoded().alias("dead_letter"), encoded.decoded().alias("meta")
    )
    letter, meta = F.col("dead_letter"), F.col("meta")
    judged = decoded.select(
        "*",
        letter_encoded.unread(letter, "reason").alias("dead_letter_unread"),
        unread_half(encoded, meta).alias("unread"),
    )
    is_letter = F.col("dead_letter_unread").isNull()
    is_invalid = letter["reason"] == DeadReason.INVALID.value
    about_half = is_letter & F.col("unread").isNull()
    if judge is not None:
        about_half = about_half & ~is_invalid
    # A change event, which a relay of changes could not send.
    is_change = ~letter["source_topic"].contains(SYSTEM)
    return _facts(
        judged,
        record_type=F.when(F.col("is_mark"), IS_MARK)
        .when(about_half, IS_DEAD_LETTER)
        .when(is_letter & (is_invalid | is_change), IS_DEAD_LETTER_OF_UNREADABLE)
        .otherwise(IS_UNREADABLE_DEAD_LETTER),
        transaction_id=F.when(about_half, meta["transaction_id"]),
        life_hash=F.when(about_half, _life_hash_of(letter["source_partition"], meta)),
        pair=letter["source_partition"],
        resume_count=meta["resume_count"],
        message_index=meta["message_index"],
        origin_offset=letter["source_offset"],
        topic=meta["real_topic"],
        # A stub refers to its source record, and does not contain it.
        content_hash=F.when(~letter["is_stub"], half_hash(meta, F.col("headers"))),
        kind=F.coalesce(F.col("dead_letter_unread"), letter["reason"]),
        source=letter["source_topic"],
    )


def all_facts(*frames: DataFrame) -> DataFrame:
    """Return the rows of frames that have the columns FACTS."""
    return reduce(DataFrame.unionAll, frames)


_PLACE = ("topic", "partition", "offset", "timestamp", "timestampType")


def _facts(frame: DataFrame, **given: Column) -> DataFrame:
    """Return FACTS from `given`; columns that are not given are null."""
    given = {
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "append_ms": F.unix_millis("timestamp"),
        **given,
    }
    return frame.select(
        *(given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in FACTS.items())
    )


def _if_read(column: Column) -> Column:
    return F.when(F.col("unread").isNull(), column)


def _life_hash_of(pair: Column, record: Column) -> Column:
    return life_hash(pair, record["resume_count"], record["producer_group"])


def life_hash(pair: Column, resume_count: Column, producer_group: Column) -> Column:
    """Return the column `life_hash` of FACTS."""
    return F.xxhash64(pair, resume_count, producer_group)


def half_bytes(headers: Column) -> Column:
    """Return RMQ_HALF. Clients write it as the last header; else the first of that name counts."""
    last = F.try_element_at(headers, F.lit(-1))
    return F.when(last["key"] == HALF, last["value"]).otherwise(first_header(headers, HALF))


def unread_half(encoded: Encoded, meta: Column) -> Column:
    """Return why a half record cannot be read; null for a readable record."""
    names = (meta["transaction_id"], meta["producer_group"], meta["real_topic"])
    empty = reduce(or_, (name == "" for name in names))
    return F.coalesce(
        encoded.unread(meta, "transaction_id"),
        F.when(_is_too_long(F.col("headers"), CONTEXT, METADATA_BYTES_MAX), TOO_LONG),
        F.when(_is_too_long(F.col("headers"), SIGN, SIGNATURE_BYTES_MAX), TOO_LONG),
        F.when(_count(F.col("headers"), SIGN) > 1, BROKEN),
        F.when(_has_no_room(encoded.data, meta), TOO_LONG),
        F.when((meta["message_index"] < 0) | empty | _is_internal(meta["producer_group"]), BROKEN),
    )


def half_hash(meta: Column, headers: Column) -> Column:
    """Return the hash of those parts of a half record that must be delivered unchanged."""
    return content_hash(
        topic=meta["real_topic"],
        key=F.col("key"),
        value=F.col("value"),
        headers=without(headers, *INTERNAL),
        born=meta["born_timestamp"].cast("string"),
    )


def is_flawed(headers: Column) -> Column:
    """Tell whether a half message must never be delivered.

    Such a half message has an internal header twice, or a user's header with a reserved name.
    """
    user = without(headers, *INTERNAL)
    forged = F.exists(user, lambda header: header["key"].isin(*sorted(RESERVED)))
    internal = F.size(headers) - F.size(user)
    # A record with RMQ_SIGN twice cannot be read (`unread_half`).
    twice = (_count(headers, HALF) > 1) | (_count(headers, CONTEXT) > 1)
    return F.when(internal > 1, twice).otherwise(F.lit(col=False)) | forged


def user_bytes(key: Column, value: Column, headers: Column, has_flaw: Column) -> Column:
    """Return the bytes that count towards a transaction's limit: serde.headers.user_bytes."""
    counted = F.when(has_flaw, _sizes(headers)).otherwise(_sizes(headers, *INTERNAL))
    return (
        F.coalesce(F.octet_length(key), F.lit(0))
        + F.coalesce(F.octet_length(value), F.lit(0))
        + F.when(F.size(headers) > 1, counted).otherwise(0)
    )


def _sizes(headers: Column, *but: str) -> Column:
    """Return the bytes of the headers' names and values, without the headers named by `but`."""

    def added(total: Column, header: Column) -> Column:
        in_value = F.coalesce(F.octet_length(header["value"]), F.lit(0))
        size_bytes = F.octet_length(header["key"]) + in_value
        return total + F.when(header["key"].isin(*but), 0).otherwise(size_bytes)

    return F.aggregate(headers, F.lit(0).cast("long"), added)


def _count(headers: Column, name: str) -> Column:
    return F.size(headers) - F.size(without(headers, name))


def _is_too_long(headers: Column, name: str, bytes_max: int) -> Column:
    return F.array_contains(headers["key"], name) & F.exists(
        headers,
        lambda header: (header["key"] == name) & (F.octet_length(header["value"]) > bytes_max),
    )


def _has_no_room(data: Column, meta: Column) -> Column:
    """Tell whether a copy or a DISCARD of this half message would be too long to be read."""
    is_original = meta["origin_offset"] < 0
    identity_bytes = F.octet_length(meta["transaction_id"]) + F.octet_length(meta["producer_group"])
    is_long = is_original & (F.octet_length(data) > ORIGINAL_METADATA_BYTES_MAX)
    return is_long | (identity_bytes > IDENTITY_BYTES_MAX)


def _is_internal(name: Column) -> Column:
    """Tell whether a producer group has an internal name: serde's holds_internal_name."""
    return name.contains(SYSTEM) | name.endswith(DEAD_LETTERS)


def append_ms() -> Column:
    """Return the broker's append time of a row; NO_APPEND_MS where the writer set the time."""
    is_brokers = F.col("timestampType") == LOG_APPEND_TIME
    return F.when(is_brokers, F.unix_millis("timestamp")).otherwise(NO_APPEND_MS)


def first_append_ms(meta: Column) -> Column:
    """Return the append time of the original: HalfRead.first_append_ms as a column."""
    is_copy = meta["origin_offset"] >= 0
    claimed_ms = F.greatest(meta["first_append_timestamp"], F.lit(NO_APPEND_MS))
    is_younger = (append_ms() >= 0) & (claimed_ms > append_ms())
    return F.when(is_copy & ~is_younger, claimed_ms).otherwise(append_ms())


def born_ms(original_ms: Column, copied_ms: Column) -> Column:
    """Return the time from which a transaction's age counts (checker.core.rebuild), in ms.

    It is NO_APPEND_MS where the age is not known. `original_ms` is the append time of the first
    original, `copied_ms` the lowest first append time that a copy carries; null: there is none.
    """
    first_ms = F.coalesce(original_ms, F.lit(NO_APPEND_MS))
    is_by_copy = (copied_ms < 0) | (first_ms < 0)
    both = F.when(is_by_copy, copied_ms).otherwise(F.least(first_ms, copied_ms))
    return F.when(copied_ms.isNull(), first_ms).otherwise(both)
