"""Reads all records of one transaction id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.checker.admin.transactions.logs import (
    BROKERS_SKEW_MS,
    Progress,
    Scan,
    Span,
    append_ms,
    half_read,
    headers_or_none,
    op_read,
    spans_between,
)
from halfbridge.checker.core.events import HalfRead, OpRead
from halfbridge.serde.avro import DEAD_MARK as DEAD_MARK_CODEC
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import DEAD, DEAD_MARK, HALF, TRANSACTION_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.transactions.logs import Slice
    from halfbridge.kafka.ports import Place, Record
    from halfbridge.serde.avro import DeadMark

# Most half records, and ops, of one id: a transaction has at most 1,000 messages, and whoever has
# the id may write any number of ops. The first ones decide.
RECORDS_KEPT_MAX = 10_000
# Records of a pair that are read after the transaction is settled, for decisions that lost: about a
# sixth of a second.
LOOK_ON_RECORDS = 50_000


class Match(NamedTuple):
    """A half record, or an op, of the id."""

    partition: int
    append_ms: int
    offset: int


class Pieces(NamedTuple):
    """Records of an id in one pair, in offset order."""

    halves: list[tuple[Record, HalfRead]]
    ops: list[tuple[Record, OpRead]]

    def with_more(self, others: Pieces) -> Pieces:
        """Return these and later ones, each once."""
        half_offsets = {half.offset for _, half in self.halves}
        op_offsets = {op.offset for _, op in self.ops}
        return Pieces(
            [*self.halves, *(one for one in others.halves if one[1].offset not in half_offsets)],
            [*self.ops, *(one for one in others.ops if one[1].offset not in op_offsets)],
        )


class Trail:
    """Reads the records that name one transaction id.

    A record is decoded only if it contains the bytes of the id in a field for ids. Keys are
    ignored: strangers may write any.
    """

    def __init__(self, cluster: Cluster, transaction_id: str, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._verifier = cluster.signatures.verifier
        self._id = transaction_id
        self._needle = transaction_id.encode("utf-8", "surrogatepass")
        self._progress = Progress(cluster.ports.clock, tell)

    def spans(self, places: Iterable[Place], time: Slice) -> dict[Place, Span]:
        """Return the offsets of a range of time; see `spans_between`."""
        return spans_between(self._cluster, places, time)

    def first(self, places: Iterable[Place], time: Slice, *, is_half: bool) -> Match | None:
        """Return the record of the id that was appended first in a range of time.

        A stranger who knows the id may write it to another pair as well. So every other partition
        is read until it is as far in time as the first match.
        """
        best: Match | None = None
        is_mine = self._is_half if is_half else self._is_op
        scan = Scan(self._cluster, self.spans(places, time))
        for batch in self._progress.batches(scan, "looking for the first record"):
            for record in batch:
                if best is None or append_ms(record) <= best.append_ms:
                    if is_mine(record):
                        match = Match(
                            record.partition() or 0, append_ms(record), record.offset() or 0
                        )
                        best = match if best is None else min(best, match, key=_append_ms)
                        scan.skip([(record.topic() or "", match.partition)])
                else:
                    scan.skip([(record.topic() or "", record.partition() or 0)])
        return best

    def pieces(
        self,
        half: Span,
        op: Span,
        places: tuple[Place, Place],
        is_settled: Callable[[Pieces], bool],
    ) -> Pieces:
        """Return the half records and ops of the id in one pair.

        Whenever a record was found, `is_settled` is asked whether a while longer is enough.
        """
        pieces = Pieces([], [])
        scan = Scan(self._cluster, spans := {places[0]: half, places[1]: op})
        left: int | None = None
        for batch in self._progress.batches(scan, "reading on"):
            found = False
            for record in batch:
                found = self._take(record, pieces, places[0][0]) or found
            if found and left is None and is_settled(pieces):
                left = LOOK_ON_RECORDS
            if left is not None:
                left -= len(batch)
                if left < 0:
                    scan.skip(spans)
        return pieces

    def ends(
        self, spans: dict[Place, Span], dead_topic: str, is_whole: Callable[[list[Record]], bool]
    ) -> list[Record]:
        """Return real records and dead letters of the id, until `is_whole` of them is true."""
        found: list[Record] = []
        scan = Scan(self._cluster, spans)
        for batch in self._progress.batches(scan, "searching the deliveries"):
            mine = [
                record
                for record in batch
                if (self._is_dead if record.topic() == dead_topic else self._is_real)(record)
            ]
            found += mine[: RECORDS_KEPT_MAX - len(found)]
            if mine and is_whole(found):
                scan.skip(spans)
        return found

    def marks(self, spans: dict[Place, Span]) -> list[tuple[Record, DeadMark]]:
        """Return the marks of dead letters of the id: what operators did about them (ADR 18)."""
        found: list[tuple[Record, DeadMark]] = []
        for batch in self._progress.batches(Scan(self._cluster, spans), "looking for later lives"):
            for record in batch:
                for name, value in headers_or_none(record):
                    if name == DEAD_MARK and value is not None and self._needle in value:
                        mark = self._mark(value)
                        if mark is not None and len(found) < RECORDS_KEPT_MAX:
                            found.append((record, mark))
        return found

    def _mark(self, value: bytes) -> DeadMark | None:
        try:
            mark = DEAD_MARK_CODEC.decode(value)
        except DecodeError:
            return None  # a stranger's record
        return mark if mark.transaction_id == self._id else None

    def _take(self, record: Record, pieces: Pieces, half_topic: str) -> bool:
        if record.topic() == half_topic:
            if len(pieces.halves) < RECORDS_KEPT_MAX and self._is_half(record):
                half = half_read(record, self._verifier)
                if isinstance(half, HalfRead):
                    pieces.halves.append((record, half))
                    return True
        elif len(pieces.ops) < RECORDS_KEPT_MAX and self._is_op(record):
            op = op_read(record, self._verifier)
            if isinstance(op, OpRead):
                pieces.ops.append((record, op))
                return True
        return False

    def _is_half(self, record: Record) -> bool:
        return any(
            name == HALF and value is not None and self._needle in value
            for name, value in headers_or_none(record)
        ) and self._is_named(half_read(record, self._verifier))

    def _is_op(self, record: Record) -> bool:
        return self._needle in (record.value() or b"") and self._is_named(
            op_read(record, self._verifier)
        )

    def _is_named(self, read: Any) -> bool:
        if isinstance(read, HalfRead):
            return read.metadata.transaction_id == self._id
        return isinstance(read, OpRead) and read.op.transaction_id == self._id

    def _is_real(self, record: Record) -> bool:
        return any(
            name == TRANSACTION_ID and value == self._needle
            for name, value in headers_or_none(record)
        )

    def _is_dead(self, record: Record) -> bool:
        headers = headers_or_none(record)
        return any(name == DEAD for name, _ in headers) and any(
            name == HALF and value is not None and self._needle in value for name, value in headers
        )


def after(append_time_ms: int) -> int:
    """Return the earliest time at which another broker may have appended a record's successor."""
    return append_time_ms - BROKERS_SKEW_MS


def _append_ms(match: Match) -> int:
    return match.append_ms
