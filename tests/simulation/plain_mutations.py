"""Planted defects of the mode at-least-once: offsets too early, or batches without kafka_txns.

Two defects are not planted here, because no run of 1,000 showed them: copies without a kafka_txn
(the copy has to come after its decision was forgotten), and records that a client sends behind a
refused one. `tests/unit/checker/loop/test_at_least_once.py` and `tests/ports/writing.py` have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.checker.loop.at_least_once import AtLeastOnce, BoundMember, PlainOutlet
from halfbridge.serde.delivery import Delivery
from tests.simulation.mutation import Mutation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.checker.loop.publish import Outgoing

_commit = PlainOutlet.commit
_commit_offsets = PlainOutlet._commit_offsets


def _commit_first(self: PlainOutlet, offsets: Any, membership: Any) -> None:
    _commit_offsets(self, offsets, membership)
    _commit(self, offsets, membership)


def _believe_the_client(self: PlainOutlet, offsets: Any, membership: Any) -> None:
    self._writer.flush(self._timeout_s)
    _commit_offsets(self, offsets, membership)


def _commit_as_anybody(
    self: BoundMember, offsets: Sequence[tuple[str, int, int, str]], **_given: Any
) -> None:
    member: Any = self._member
    group = member._broker.group(member._group)
    wanted = {(topic, number): (offset, text) for topic, number, offset, text in offsets}
    group.store(group.next_commit(), wanted)


def _letters_are_plain(self: AtLeastOnce, batch: Sequence[Outgoing]) -> bool:
    if batch and self._kafka_txns_left:
        return False
    own = (self._names.half, self._names.op)
    return not any(record.topic in own for record in batch)


def _write_in_reverse(self: PlainOutlet, records: Iterable[Outgoing]) -> bool:
    return _produce(self, reversed([*records]))


_produce = PlainOutlet._produce


def _planted(name: str, seeds: int, *patches: tuple[Any, str, Any], begin: int = 0) -> Mutation:
    return Mutation(name, seeds, patches, begin=begin, delivery=Delivery.AT_LEAST_ONCE)


PLAIN = (
    _planted(
        "offsets committed before records are proven",
        100,
        (PlainOutlet, "commit", _commit_first),
        begin=15,
    ),
    _planted(
        "offsets committed by an older generation",
        100,
        (BoundMember, "commit", _commit_as_anybody),
        begin=890,
    ),
    _planted(
        "refused record passed over",
        100,
        (PlainOutlet, "commit", _believe_the_client),
        begin=23,
    ),
    _planted(
        "dead letters written without a kafka_txn",
        100,
        (AtLeastOnce, "_may_be_plain", _letters_are_plain),
        begin=3,
    ),
    _planted("real records written in reverse", 100, (PlainOutlet, "_produce", _write_in_reverse)),
)
