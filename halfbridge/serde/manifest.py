"""The Spark sink's batch manifests: nested records, unlike all others, and their bytes."""

from __future__ import annotations

import io
import json
from typing import Any, NamedTuple

import fastavro

from halfbridge.serde.avro import HEADER_BYTES, MARKER, Codec, schema_fingerprint, schema_text
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.records import Symbol


class ManifestKind(Symbol):
    """The kind of a manifest: the state of its batch."""

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


_ATTEMPTS = "attempts"
_TRANSACTIONS = "transactions"
_DEAD_LETTER_OFFSETS = "dead_letter_offsets"


class _ManifestCodec(Codec[BatchManifest]):
    """Gives fastavro the nested records as it wants them: as dictionaries."""

    def __init__(self, schema_names: tuple[str, ...]) -> None:
        super().__init__(BatchManifest, schema_names)
        heads = [_head(name) for name in schema_names]
        self._heads = dict(heads)
        self._newest_head = heads[-1][1]

    def decode_head(self, data: bytes) -> BatchManifest:
        """Return the manifest without its attempts, which are not decoded; raises as `decode`.

        They are last, and may be a hundred thousand: decoding them takes fifty times as long, and
        as much memory, as the rest.
        """
        head = self._heads.get(data[:HEADER_BYTES])
        if head is None:
            return self.decode(data)  # which names the fault
        body = io.BytesIO(data)
        body.seek(HEADER_BYTES)
        try:
            raw: Any = fastavro.schemaless_reader(body, head, self._newest_head)
            return BatchManifest(
                **{name: self._field(name, value) for name, value in raw.items()}, attempts=()
            )
        except Exception as error:  # fastavro raises whatever its reader stumbles over
            raise DecodeError(f"BatchManifest: broken body: {error!r}", data) from error

    def _write(self, row: tuple[Any, ...]) -> bytes:
        *flat, attempts = row
        nested = [
            {**attempt._asdict(), _TRANSACTIONS: [each._asdict() for each in attempt.transactions]}
            for attempt in attempts
        ]
        return super()._write((*flat, nested))

    def _field(self, name: str, value: Any) -> Any:
        if name == _DEAD_LETTER_OFFSETS:
            return tuple(value)
        if name != _ATTEMPTS:
            return super()._field(name, value)
        return tuple(
            ManifestAttempt(
                attempt["attempt_id"],
                tuple(ManifestTransaction(**each) for each in attempt[_TRANSACTIONS]),
            )
            for attempt in value
        )


def _head(name: str) -> tuple[bytes, Any]:
    """Return how such a manifest's bytes begin, and the schema of all but its attempts."""
    schema = json.loads(schema_text(name))
    *fields, attempts = schema["fields"]
    if attempts["name"] != _ATTEMPTS:
        raise ValueError(f"{name}: {_ATTEMPTS} are not last")  # a bug in the schema
    begins = MARKER + schema_fingerprint(fastavro.parse_schema(schema))
    head = {**schema, "name": f"{schema['name']}Head", "fields": fields}
    return begins, fastavro.parse_schema(head)


BATCH_MANIFEST = _ManifestCodec(("batch_manifest.v1", "batch_manifest.v2", "batch_manifest.v3"))
