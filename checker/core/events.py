"""What the ledger is told: records that were read. Past tense; offsets are of one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from serde.records import HalfMetadata, Op


class HalfRead(NamedTuple):
    """A half record was read.

    Attributes:
        offset: Its half offset.
        append_ms: The broker's append time.
        metadata: What RMQ_HALF says.
        flaw: Why it must never be delivered; empty when all is well (serde.headers).
        size_bytes: Key, value and headers.
        body: The record itself for whoever writes it on; opaque here. None after the ledger let
            it go to keep its budget: then it is read again by offset.
    """

    offset: int
    append_ms: int
    metadata: HalfMetadata
    flaw: str
    size_bytes: int
    body: object | None

    @property
    def origin(self) -> int:
        """Offset of the original: its own unless this is a copy."""
        origin = self.metadata.origin_offset
        return self.offset if origin < 0 else origin


class OpRead(NamedTuple):
    """An op record was read."""

    offset: int
    append_ms: int
    op: Op


class JunkRead(NamedTuple):
    """A half or op record that cannot be read: no or broken metadata, unknown schema.

    Attributes:
        size_bytes, body: As of HalfRead; an op's body is never let go.
    """

    offset: int
    append_ms: int
    detail: str
    size_bytes: int
    body: object | None
