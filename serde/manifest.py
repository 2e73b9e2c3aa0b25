"""The Spark sink's batch manifest to bytes and back. Its records are nested, unlike all others."""

from __future__ import annotations

from typing import Any

from serde.avro import Codec
from serde.records import BatchManifest, ManifestAttempt, ManifestTransaction

_ATTEMPTS = "attempts"
_TRANSACTIONS = "transactions"


class _ManifestCodec(Codec[BatchManifest]):
    """Gives fastavro the nested records as it wants them: as dictionaries."""

    def _write(self, row: tuple[Any, ...]) -> bytes:
        *flat, attempts = row
        nested = [
            {**attempt._asdict(), _TRANSACTIONS: [each._asdict() for each in attempt.transactions]}
            for attempt in attempts
        ]
        return super()._write((*flat, nested))

    def _field(self, name: str, value: Any) -> Any:
        if name != _ATTEMPTS:
            return super()._field(name, value)
        return tuple(
            ManifestAttempt(
                attempt["attempt_id"],
                tuple(ManifestTransaction(**each) for each in attempt[_TRANSACTIONS]),
            )
            for attempt in value
        )


BATCH_MANIFEST = _ManifestCodec(BatchManifest, ("batch_manifest.v1",))
