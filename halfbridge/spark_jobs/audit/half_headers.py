"""The headers of a half record as columns. The rules are those of serde.headers."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.headers import CONTEXT, HALF, INTERNAL, RESERVED, SIGN
from halfbridge.serde.limits import (
    IDENTITY_BYTES_MAX,
    METADATA_BYTES_MAX,
    ORIGINAL_METADATA_BYTES_MAX,
    SIGNATURE_BYTES_MAX,
)
from halfbridge.serde.topics import DEAD_LETTERS, SYSTEM
from halfbridge.spark_jobs.reading.wire import (
    BROKEN,
    TOO_LONG,
    Encoded,
    content_hash,
    first_header,
    without,
)

if TYPE_CHECKING:
    from pyspark.sql import Column


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
