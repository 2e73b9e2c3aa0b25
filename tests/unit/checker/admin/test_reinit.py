"""New offsets of a stopped partition, computed from its logs and the delivered records."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from halfbridge.checker.admin.init import Choice, Evidence, NewOffsets, new_offsets
from halfbridge.checker.core.events import HalfRead, OpRead
from halfbridge.checker.core.ledger import Ledger
from halfbridge.serde.progress import Progress
from halfbridge.serde.protocol import REASON_AGE, State
from halfbridge.serde.records import OpKind, OpSource
from tests.kit.records import A_HALF, AN_OP
from tests.ledger_log import SETTINGS, UNLIMITED

GROUP = "orders-service"
AGE_MS_MAX = 1000


@dataclass
class Log:
    """A half and an op partition."""

    halves: list[HalfRead] = field(default_factory=list)
    ops: list[OpRead] = field(default_factory=list)

    def half(
        self,
        transaction_id: str,
        *,
        group: str = GROUP,
        topic: str = "orders",
        origin: int = -1,
        index: int = 0,
        life: int = 0,
        append_ms: int = 0,
    ) -> int:
        """Append a half record (a copy when `origin` is given); return its offset."""
        offset = len(self.halves)
        metadata = A_HALF._replace(
            transaction_id=transaction_id,
            message_index=index,
            resume_count=life,
            producer_group=group,
            real_topic=topic,
            first_append_timestamp=-1 if origin < 0 else 0,
            origin_offset=origin,
        )
        self.halves.append(HalfRead(offset, append_ms, metadata, "", 0, None))
        return offset

    def op(
        self,
        transaction_id: str,
        kind: OpKind = OpKind.COMMIT,
        *,
        group: str = GROUP,
        append_ms: int = 0,
        half_offset: int | None = None,
        count: int = 1,
        **more: Any,
    ) -> int:
        offset = len(self.ops)
        op = AN_OP._replace(
            transaction_id=transaction_id,
            half_offset=len(self.halves) - 1 if half_offset is None else half_offset,
            producer_group=group,
            kind=kind,
            message_count=count,
            **more,
        )
        self.ops.append(OpRead(offset, append_ms, op))
        return offset

    def committed(self, *transaction_ids: str) -> None:
        """Append a half and its COMMIT for each id."""
        for transaction_id in transaction_ids:
            self.half(transaction_id)
            self.op(transaction_id)

    def plan(self, evidence: Evidence, choice: Choice = Choice.REFUSE) -> NewOffsets:
        return new_offsets(
            self.halves,
            self.ops,
            evidence,
            half_end=len(self.halves),
            op_end=len(self.ops),
            choice=choice,
        )


@pytest.fixture
def log() -> Log:
    """An empty partition pair."""
    return Log()


def test_empty_partition_continues_at_its_ends(log: Log) -> None:
    """An empty partition resumes at offset 0."""
    found = log.plan(Evidence())

    assert found.exact
    assert found.progress == Progress(half=0, op=0, rebuild_to=0, ops_from=0, position=0)


def test_with_all_delivered_it_continues_behind_everything(log: Log) -> None:
    """If every decision is applied, O and H are the ends of the partitions."""
    log.committed("a", "b")

    found = log.plan(Evidence(delivered={("a", 0), ("b", 0)}))

    assert found.exact
    assert found.applied == ("a", "b")
    assert found.progress == Progress(half=2, op=2, rebuild_to=2, ops_from=2, position=2)


def test_a_redelivery_is_no_part_of_the_life_before(log: Log) -> None:
    """Message 0 is delivered; message 1, EXTRA and stored again as life 1, is still to apply.

    With a search by transaction id only, life 1 would count as delivered and be lost.
    """
    log.committed("a")
    log.half("a", index=1, life=1)
    log.op("a", resume_count=1, source=OpSource.OPERATOR)

    found = log.plan(Evidence(delivered={("a", 0)}))

    assert found.exact
    assert (found.applied, found.to_apply) == (("a",), ("a",))
    assert found.progress.op == 1


def test_a_part_is_not_all(log: Log) -> None:
    """If an at-least-once daemon crashed after message 0 of two, the COMMIT is to apply again.

    If one message were sufficient, O would be after the COMMIT, and message 1 would be lost.
    """
    log.half("a")
    log.half("a", topic="bills", index=1)
    log.op("a", count=2)

    found = log.plan(Evidence(delivered={("a", 0)}))
    assert (found.applied, found.to_apply, found.progress.op) == ((), ("a",), 0)

    found = log.plan(Evidence(delivered={("a", 0)}, expired_before_ms={"bills": 1}))
    assert (found.applied, found.to_apply, found.progress.op) == (("a",), (), 1)


def test_what_no_decision_covers_need_not_be_there(log: Log) -> None:
    """Message 1, after the COMMIT or beyond its count, is not needed to prove the delivery."""
    log.half("a")
    log.half("a", index=1)
    log.op("a", count=1)
    log.half("b")
    log.op("b", count=-1)
    log.half("b", index=1)

    found = log.plan(Evidence(delivered={("a", 0), ("b", 0)}))

    assert found.exact
    assert found.applied == ("a", "b")


def test_undelivered_tail_is_applied(log: Log) -> None:
    """O is the first COMMIT without a delivered record; H is at its half message."""
    log.committed("a", "b", "c")

    found = log.plan(Evidence(delivered={("a", 0)}))

    assert found.exact
    assert found.to_apply == ("b", "c")
    assert (found.progress.op, found.progress.half) == (1, 1)


def test_undecided_half_below_holds_h_and_t(log: Log) -> None:
    """H is the oldest undecided half; T the oldest decision about a half at or above H."""
    log.half("undecided")
    log.committed("a", "b")

    found = log.plan(Evidence(delivered={("a", 0), ("b", 0)}))

    assert found.progress == Progress(half=0, op=2, rebuild_to=3, ops_from=0, position=3)


def test_decided_below_h_does_not_hold_t(log: Log) -> None:
    """A decision with all halves below H does not lower T."""
    log.committed("old")
    log.half("undecided")
    log.committed("new")

    found = log.plan(Evidence(delivered={("old", 0), ("new", 0)}))

    assert (found.progress.half, found.progress.ops_from) == (1, 1)


def test_copy_above_h_keeps_its_decision(log: Log) -> None:
    """T stays at a decision with a put-back copy above H, so that a rebuild reads the decision."""
    origin = log.half("a")
    log.half("undecided")
    log.half("a", origin=origin)
    log.op("a")

    found = log.plan(Evidence(delivered={("a", 0)}))

    assert (found.progress.half, found.progress.ops_from) == (1, 0)


def test_dead_lettered_counts_as_applied(log: Log) -> None:
    """A COMMIT or DISCARD counts as applied if its dead letters are found."""
    log.committed("refused")
    log.half("discarded")
    log.op("discarded", OpKind.DISCARD, source=OpSource.OPERATOR)

    found = log.plan(Evidence(dead={("refused", 0), ("discarded", 0)}))

    assert found.exact
    assert found.progress.op == 2


def test_rollback_needs_no_trace(log: Log) -> None:
    """A ROLLBACK counts as applied without delivered records."""
    log.half("gone")
    log.op("gone", OpKind.ROLLBACK)
    log.committed("a")

    found = log.plan(Evidence(delivered={("a", 0)}))

    assert found.exact
    assert found.progress.op == 2
    assert found.progress.half == 2


def test_first_decision_wins(log: Log) -> None:
    """A COMMIT after a ROLLBACK is not to apply."""
    log.half("a")
    log.op("a", OpKind.ROLLBACK)
    log.op("a", OpKind.COMMIT)

    found = log.plan(Evidence())

    assert found.exact
    assert found.to_apply == ()


def test_half_of_another_group_under_a_known_id_stays_undecided(log: Log) -> None:
    """A half of another group is a separate undecided transaction, which holds H."""
    log.committed("a")
    log.half("a", group="other")

    found = log.plan(Evidence(delivered={("a", 0)}))

    assert found.progress.half == 1


def test_op_beyond_the_half_partition_decides_like_any_other(log: Log) -> None:
    """Rule 1: an op whose half offset does not exist applies to the stored halves."""
    log.half("a")
    log.op("a", half_offset=10)

    assert log.plan(Evidence()).progress == Progress(
        half=0, op=0, rebuild_to=1, ops_from=0, position=0
    )
    assert log.plan(Evidence(delivered={("a", 0)})).progress == Progress(
        half=1, op=1, rebuild_to=1, ops_from=1, position=1
    )


def test_age_discard_without_the_age_decides_nothing(log: Log) -> None:
    """An AGE discard whose append time does not prove the age leaves the half undecided."""
    log.half("a", append_ms=500)
    age = {"reason": REASON_AGE, "age_ms": AGE_MS_MAX}
    log.op("a", OpKind.DISCARD, source=OpSource.CHECKER, append_ms=1499, **age)

    found = log.plan(Evidence())

    assert found.exact
    assert (found.progress.op, found.progress.half) == (1, 0)


def test_delivered_behind_a_missing_one_needs_a_choice(log: Log) -> None:
    """Without a choice, the plan lists what is to apply and what would be delivered twice."""
    log.committed("a", "lost", "c")

    found = log.plan(Evidence(delivered={("a", 0), ("c", 0)}))

    assert not found.exact
    assert found.to_apply == ("lost",)
    assert found.twice == ("c",)


def test_accepting_duplicates_starts_at_the_missing_one(log: Log) -> None:
    """With ACCEPT_DUPLICATES nothing is lost; what is after the missing one is delivered twice."""
    log.committed("a", "lost", "c")

    found = log.plan(Evidence(delivered={("a", 0), ("c", 0)}), Choice.ACCEPT_DUPLICATES)

    assert found.progress.op == 1
    assert (found.twice, found.never) == (("c",), ())


def test_skipping_starts_behind_the_last_delivered_one(log: Log) -> None:
    """With SKIP_UNDELIVERED nothing is delivered twice; only the missing one is never delivered."""
    log.committed("a", "lost", "c", "new")

    found = log.plan(Evidence(delivered={("a", 0), ("c", 0)}), Choice.SKIP_UNDELIVERED)

    assert found.progress.op == 3
    assert (found.twice, found.never, found.to_apply) == ((), ("lost",), ("new",))


def test_expired_real_records_are_no_proof(log: Log) -> None:
    """If the real topic's records may have expired, the plan needs an operator's choice."""
    log.half("old")
    log.op("old", append_ms=100)
    log.half("new")
    log.op("new", append_ms=300)

    found = log.plan(Evidence(expired_before_ms={"orders": 200}))

    assert not found.exact
    assert found.uncertain == ("old",)
    assert log.plan(
        Evidence(expired_before_ms={"orders": 200}), Choice.SKIP_UNDELIVERED
    ).to_apply == ("new",)


def test_position_leaves_late_halves_to_be_dead_lettered(log: Log) -> None:
    """The position is not after a late half, so that the half becomes a dead letter."""
    log.committed("a")
    log.half("a", index=1)

    found = log.plan(Evidence(delivered={("a", 0)}))

    assert found.progress.position <= 2
    assert found.progress.rebuild_to == 2


def test_h_does_not_part_a_transaction_discarded_for_age(log: Log) -> None:
    """H is lowered to the first message: the last one alone is too young to prove the age."""
    log.half("old", index=0, append_ms=0)
    log.half("passed", append_ms=0)
    undecided = log.half("undecided", append_ms=AGE_MS_MAX - 1)
    log.half("old", index=1, append_ms=AGE_MS_MAX - 1)
    log.op("passed", append_ms=AGE_MS_MAX)
    source = OpSource.CHECKER
    log.op(
        "old",
        OpKind.DISCARD,
        append_ms=AGE_MS_MAX,
        source=source,
        reason=REASON_AGE,
        age_ms=AGE_MS_MAX,
    )
    found = log.plan(Evidence(delivered={("passed", 0)}, dead={("old", 0)}))

    assert undecided == 2
    assert found.exact
    assert found.progress == Progress(half=0, op=2, rebuild_to=4, ops_from=0, position=4)
    assert _undecided_after(log, found) == {"undecided"}


def test_h_stays_below_all_discarded_transactions_that_overlap(log: Log) -> None:
    """H is lowered again for a transaction that overlaps with the one it was lowered for."""
    for name, index in (("a", 0), ("b", 0), ("a", 1), ("undecided", 0), ("b", 1)):
        log.half(name, index=index, append_ms=0)
    for name in "ab":
        log.op(name, OpKind.DISCARD, append_ms=AGE_MS_MAX, source=OpSource.OPERATOR)
    found = log.plan(Evidence(dead={("a", 0), ("b", 0)}))

    assert (found.progress.half, found.progress.ops_from) == (0, 0)


def test_a_copy_above_h_tells_the_age(log: Log) -> None:
    """H is not lowered if a copy above H proves the age."""
    log.half("old", append_ms=0)
    log.half("undecided", append_ms=0)
    log.half("old", append_ms=AGE_MS_MAX, origin=0)
    age = {"reason": REASON_AGE, "age_ms": AGE_MS_MAX}
    log.op("old", OpKind.DISCARD, append_ms=AGE_MS_MAX, source=OpSource.CHECKER, **age)
    found = log.plan(Evidence(dead={("old", 0)}))

    assert found.progress.half == 1
    assert _undecided_after(log, found) == {"undecided"}


def _undecided_after(log: Log, found: NewOffsets) -> set[str]:
    """Return the undecided transactions of a ledger that starts at the progress in `found`."""
    ledger = Ledger(SETTINGS, found.progress)
    for half in log.halves[found.progress.half :]:
        ledger.half(half)
    for op in log.ops[found.progress.ops_from :]:
        ledger.op(op)
    ledger.plan(AGE_MS_MAX, records_max=UNLIMITED, size_bytes_max=UNLIMITED)
    return {
        half.metadata.transaction_id
        for entry in ledger._book.entries
        if entry.state is State.UNDECIDED
        for half in entry.messages.values()
    }
