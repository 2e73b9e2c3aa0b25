"""What the Spark sink's manifests say, as immutable records; `serde.manifest` has their bytes."""

from __future__ import annotations

from typing import NamedTuple

from halfbridge.serde.records import Symbol


class ManifestKind(Symbol):
    """What a manifest says of its batch."""

    COMMIT = "COMMIT"
    REJECT = "REJECT"


class ManifestTransaction(NamedTuple):
    """One transaction of an attempt."""

    transaction_id: str
    half_partition: int
    message_count: int
    half_offset: int


class ManifestAttempt(NamedTuple):
    """One task attempt, and its transactions in the order of their decisions."""

    attempt_id: str
    transactions: tuple[ManifestTransaction, ...]


class BatchManifest(NamedTuple):
    """Value of a manifest record; its key is the app id in UTF-8."""

    app_id: str
    batch_id: int
    kind: ManifestKind
    searched_from: int
    first_append_timestamp: int
    age_ms_max: int
    row_count: int
    content_hash: str
    query_id: str
    plan_hash: str
    refused_count: int
    dead_letter_offsets: tuple[int, ...]
    dead_letter_topic_id: str
    timestamp: int
    producer_group: str
    actor: str
    reason: str
    attempts: tuple[ManifestAttempt, ...]
