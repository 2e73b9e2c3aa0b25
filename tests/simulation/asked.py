"""What the judge says of discards for age: only those that were asked about, in vain, are too old.

Holds for runs without faults. Elsewhere requests and answers get lost.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from halfbridge.checker.core.events import OpRead
from halfbridge.serde.avro import CHECK_REQUEST
from halfbridge.serde.protocol import REASON_AGE
from halfbridge.serde.records import OpKind, OpSource
from tests.simulation.reading import visible
from tests.simulation.settings import GROUPS, NAMES, BrokenPromiseError

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from tests.ledger_log import Log
    from tests.property.model import Truth
    from tests.simulation.world import World


def judge_discards(world: World, log: Log, truth: Truth, *, deaf: AbstractSet[str]) -> None:
    """Judge the discards for age of one partition.

    Args:
        world: A run without faults.
        log: The records of half and op partition.
        truth: What follows from the log.
        deaf: Producer groups whose checkers hang.

    Raises:
        BrokenPromiseError: a transaction was not asked about, or its group was able to answer.
    """
    asked_ms = _asked(world)
    answered_ms: dict[str, list[int]] = defaultdict(list)
    for read in log.op:
        if not isinstance(read, OpRead):
            continue
        op = read.op
        if op.source is OpSource.CHECK:
            answered_ms[op.producer_group].append(read.append_ms)
        key = op.transaction_id, op.producer_group, op.resume_count
        is_ours = op.kind is OpKind.DISCARD and op.source is OpSource.CHECKER
        if not is_ours or op.reason != REASON_AGE or truth.decided_by.get(key) != read.offset:
            continue
        asked = asked_ms[key]
        if len(asked) < world.profile.ledger.unanswered_before_discard:
            raise BrokenPromiseError(f"{key}: too old, and asked about {len(asked)} times")
        # A group that had no turn between the first request and the last one may be late with all
        # its answers.
        has_answered = any(asked[0] < each < asked[-1] for each in answered_ms[op.producer_group])
        if has_answered and op.producer_group not in deaf:
            raise BrokenPromiseError(f"{key}: too old, and its group answers")


def _asked(world: World) -> dict[tuple[str, str, int], list[int]]:
    """Return when each transaction was asked about, in order."""
    asked: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for group in GROUPS:
        for record in visible(world.partition((NAMES.check(group), 0))):
            _, value = (record.headers() or [("", b"")])[-1]
            request = CHECK_REQUEST.decode(value or b"")
            key = request.transaction_id, request.producer_group, request.resume_count
            asked[key].append(record.timestamp()[1])
    return asked
