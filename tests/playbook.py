"""Playbooks for the ledger: what is read, and what must be written, line by line.

    Playbook() >> half("A") >> commit("A") << delivered("A")

`>>` appends a record to the half or op partition and lets the ledger read it, or does what its
name says (`wait`, `restart`, ...). `<<` takes one plan, compares all that it writes with what is
expected, and commits it: copies and discards of the plan are appended to the log, as a kafka_txn
would, and are read with the next step. What is counted on the way is compared with `<< counted`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import ndiff

from checker.core.events import HalfRead, JunkRead, OpRead
from checker.core.ledger import Ledger
from checker.core.plan import Check, Count, Plan
from checker.core.progress import START, Progress
from checker.core.settings import LedgerSettings
from serde.records import (
    COUNT_UNKNOWN,
    DEFAULT_IMMUNITY,
    NO_OFFSET,
    NO_TIMESTAMP,
    HalfMetadata,
    Op,
    OpKind,
    OpSource,
)

BEGIN_MS = 1_000_000
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
TIMEOUT_MS = 6 * SECOND_MS
INTERVAL_MS = 30 * SECOND_MS
UNLIMITED = 1 << 60

SETTINGS = LedgerSettings(
    transaction_timeout_ms=TIMEOUT_MS,
    check_interval_ms=INTERVAL_MS,
    check_count_max=15,
    transaction_age_ms_max=72 * HOUR_MS,
    check_backoff_ms_max=10 * MINUTE_MS,
    republish_window_records=100_000,
    republish_window_bytes=UNLIMITED,
    ledger_bytes_max=UNLIMITED,
    unanswered_before_discard=3,
    readiness_before_discard_ms=HOUR_MS,
    actor="worker-0",
    allows=lambda _group, topic: topic != "forbidden",
)


@dataclass
class Log:
    """A half and an op partition of the same number, and all that kafka_txns wrote elsewhere.

    Attributes:
        half, op: Records by ascending offset; a gap stands where a transaction marker would.
        written: What was written to real and dead-letter topics, in words, in order.
    """

    half: list[HalfRead | JunkRead] = field(default_factory=list)
    op: list[OpRead | JunkRead] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    half_end: int = 0
    op_end: int = 0

    def append_half(
        self, metadata: HalfMetadata, append_ms: int, *, flaw: str = "", size_bytes: int = 100
    ) -> int:
        """Append a half record and return its offset."""
        offset = self.half_end
        body = ("body", offset)
        self.half.append(HalfRead(offset, append_ms, metadata, flaw, size_bytes, body))
        self.half_end += 1
        return offset

    def append_op(self, op: Op, append_ms: int) -> int:
        """Append an op record and return its offset."""
        offset = self.op_end
        self.op.append(OpRead(offset, append_ms, op))
        self.op_end += 1
        return offset

    def write(self, plan: Plan, now_ms: int) -> int:
        """Write what `plan` says as one kafka_txn; return the end of its copies, 0 without any."""
        self.written += outcomes(plan)
        copies_end = 0
        for each in plan.put_backs:
            half = each.half
            self.append_half(each.metadata, now_ms, flaw=half.flaw, size_bytes=half.size_bytes)
            copies_end = self.half_end
        for op in plan.discards:
            self.append_op(op, now_ms)
        self.half_end += bool(plan.put_backs)  # the marker
        self.op_end += bool(plan.discards)
        return copies_end


class Reader:
    """A ledger and how far it has read the log."""

    def __init__(self, log: Log, settings: LedgerSettings, progress: Progress) -> None:
        self.log = log
        self.ledger = Ledger(settings, progress)
        self.half_at = sum(record.offset < progress.half for record in log.half)
        self.op_at = sum(record.offset < progress.ops_from for record in log.op)

    def read_half(self, limit: int = UNLIMITED) -> None:
        """Read half records, and PARTITION_EOF when the end is reached."""
        for record in self.log.half[self.half_at : self.half_at + limit]:
            self.half_at += 1
            if isinstance(record, JunkRead):
                self.ledger.junk_half(record)
            else:
                self.ledger.half(record)
        if self.half_at == len(self.log.half):
            self.ledger.half_read_to(self.log.half_end)

    def read_op(self, limit: int = UNLIMITED) -> None:
        """Read op records, and PARTITION_EOF when the end is reached."""
        for record in self.log.op[self.op_at : self.op_at + limit]:
            self.op_at += 1
            if isinstance(record, JunkRead):
                self.ledger.junk_op(record)
            else:
                self.ledger.op(record)
        if self.op_at == len(self.log.op):
            self.ledger.op_read_to(self.log.op_end)

    def read(self) -> None:
        """Read everything there is."""
        self.read_half()
        self.read_op()


# --- steps (right of >>) -------------------------------------------------------------------

Step = Callable[["Playbook"], None]


def half(
    name: str, index: int = 0, *, flaw: str = "", size_bytes: int = 100, **fields: object
) -> Step:
    """Store message `index` of transaction `name`; `fields` are those of HalfMetadata."""

    def step(book: Playbook) -> None:
        offset = book.log.append_half(
            metadata(name, index)._replace(**fields), book.now_ms, flaw=flaw, size_bytes=size_bytes
        )
        book.last_offset[name] = offset

    return step


def op(name: str, kind: OpKind, **fields: object) -> Step:
    """Say `kind` of transaction `name`; half_offset is its last half's unless given."""

    def step(book: Playbook) -> None:
        said = op_record(name, kind, half_offset=book.last_offset.get(name, book.log.half_end - 1))
        book.log.append_op(said._replace(**fields), book.now_ms)

    return step


def commit(name: str, count: int = COUNT_UNKNOWN, **fields: object) -> Step:
    """Say COMMIT."""
    return op(name, OpKind.COMMIT, message_count=count, **fields)


def rollback(name: str, **fields: object) -> Step:
    """Say ROLLBACK."""
    return op(name, OpKind.ROLLBACK, **fields)


def unknown(name: str, check_number: int, **fields: object) -> Step:
    """Answer UNKNOWN to a check."""
    return op(name, OpKind.UNKNOWN, check_number=check_number, source=OpSource.CHECK, **fields)


def discard(name: str, source: OpSource = OpSource.OPERATOR, **fields: object) -> Step:
    """Say DISCARD."""
    return op(name, OpKind.DISCARD, source=source, **fields)


def junk_half(detail: str = "no RMQ_HALF header") -> Step:
    """Store a half record that cannot be read."""

    def step(book: Playbook) -> None:
        log = book.log
        log.half.append(JunkRead(log.half_end, book.now_ms, detail, None))
        log.half_end += 1

    return step


def junk_op(detail: str = "broken body") -> Step:
    """Store an op record that cannot be read."""

    def step(book: Playbook) -> None:
        log = book.log
        log.op.append(JunkRead(log.op_end, book.now_ms, detail, None))
        log.op_end += 1

    return step


def unread(*steps: Step) -> Step:
    """Do steps without letting the ledger read what they appended."""

    def step(book: Playbook) -> None:
        book.reads = False
        for each in steps:
            each(book)

    return step


def wait(ms: int) -> Step:
    """Let time pass."""

    def step(book: Playbook) -> None:
        book.now_ms += ms

    return step


def read_half(book: Playbook) -> None:
    """Read the half partition to its end, and no ops."""
    book.reads = False
    book.reader.read_half()


def read_ops(book: Playbook) -> None:
    """Read the op partition to its end, and no halves."""
    book.reads = False
    book.reader.read_op()


def op_end(book: Playbook) -> None:
    """Learn where op p ends now."""
    book.reader.read()
    book.ledger.op_end(book.log.op_end, book.now_ms)


def killed_before_commit(book: Playbook) -> None:
    """Take a plan, die before its kafka_txn is committed, and start again."""
    book.take_plan()
    restart(book)


def restart(book: Playbook) -> None:
    """Start again from what is committed."""
    book.reader = Reader(book.log, book.settings, book.progress)


# --- expectations (right of <<) ------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """These checks are sent now, in this order."""

    checks: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Counted:
    """The plan just taken counted this and nothing else."""

    counts: tuple[tuple[Count, int], ...]


Lines = tuple[str, ...]
nothing: Lines = ()


def delivered(name: str, *indices: int) -> Lines:
    """Messages of a transaction, delivered in this order; without indices: its only one."""
    return tuple(f"deliver {name}[{index}]" for index in indices or (0,))


def dead(name: str, reason: str, index: int = 0) -> Lines:
    """A message goes to the dead-letter topic."""
    return (f"dead {name}[{index}] {reason}",)


def put_back(name: str, rule: str, check_times: int = 0, index: int = 0) -> Lines:
    """A copy of a half message is appended."""
    return (f"put back {name}[{index}] by {rule}, {check_times} answered",)


def discard_written(name: str, reason: str) -> Lines:
    """The daemon's DISCARD is appended to the op partition."""
    return (f"write DISCARD of {name} {reason}",)


def junk_buried(partition: str, offset: int) -> Lines:
    """A record that cannot be read goes to the dead-letter topic."""
    return (f"dead junk {partition}@{offset}",)


def asked(name: str, number: int = 1, attempt: int = 1) -> Asked:
    """A check is sent; add several with +."""
    return Asked(((name, number, attempt),))


def all_asked(*checks: Asked) -> Asked:
    """Return several checks as one expectation."""
    return Asked(tuple(each for check in checks for each in check.checks))


nobody_asked = Asked(())


def counted(count: Count, times: int = 1) -> Counted:
    """One thing is counted, and nothing else."""
    return Counted(((count, times),))


nothing_counted = Counted(())


# --- the playbook --------------------------------------------------------------------------


class Playbook:
    """Runs a ledger through a script; see the module's docstring.

    Args:
        changes: Ledger settings that differ from the defaults.
    """

    def __init__(self, **changes: object) -> None:
        self.settings = replace(SETTINGS, **changes)
        self.log = Log()
        self.progress = START
        self.now_ms = BEGIN_MS
        self.last_offset: dict[str, int] = {}
        self.reads = True
        self.plan = Plan()
        self.records_max = UNLIMITED
        self.size_bytes_max = UNLIMITED
        restart(self)
        self.take_plan()  # the rebuild of an empty log

    @property
    def ledger(self) -> Ledger:
        """The ledger under test; another one after a restart."""
        return self.reader.ledger

    def __rshift__(self, step: Step) -> Playbook:
        self.reads = True
        step(self)
        if self.reads and step is not killed_before_commit:
            self.reader.read()
        return self

    def __lshift__(self, expected: Lines | Asked | Counted) -> Playbook:
        if isinstance(expected, Asked):
            limit = max(1, len(expected.checks))
            checks = self.ledger.checks(self.now_ms, limit)
            _compare([str(each) for each in expected.checks], [str(_asked(c)) for c in checks])
        elif isinstance(expected, Counted):
            _compare(
                [f"{count.value}: {times}" for count, times in expected.counts],
                [f"{count.value}: {times}" for count, times in self.plan.counts.items()],
            )
        else:
            self.take_plan()
            _compare(list(expected), outcomes(self.plan))
            self.commit()
        return self

    def take_plan(self) -> Plan:
        """Take the next plan without committing it."""
        self.plan = self.ledger.plan(
            self.now_ms, records_max=self.records_max, size_bytes_max=self.size_bytes_max
        )
        return self.plan

    def commit(self) -> None:
        """Commit the plan that was taken, with its progress."""
        copies_end = self.log.write(self.plan, self.now_ms)
        self.progress = self.ledger.progress(copies_end)
        self.ledger.committed(self.progress, self.now_ms)


def metadata(name: str, index: int = 0) -> HalfMetadata:
    """Return what an original's header says."""
    return HalfMetadata(
        transaction_id=name,
        born_timestamp=1,
        resume_count=0,
        message_index=index,
        producer_group="orders",
        real_topic="real",
        real_partition=-1,
        check_times=0,
        immunity_ms=DEFAULT_IMMUNITY,
        first_append_timestamp=NO_TIMESTAMP,
        origin_offset=NO_OFFSET,
    )


def op_record(name: str, kind: OpKind, *, half_offset: int) -> Op:
    """Return what the producer of `name` would say."""
    return Op(
        transaction_id=name,
        timestamp=1,
        half_offset=half_offset,
        resume_count=0,
        producer_group="orders",
        kind=kind,
        message_count=COUNT_UNKNOWN,
        check_number=0,
        source=OpSource.PRODUCER,
        actor="someone",
        reason="",
    )


def outcomes(plan: Plan) -> list[str]:
    """Return in words what a plan writes, in order."""
    lines = [
        line
        for each in plan.deliveries
        for line in delivered(
            each.transaction_id, *(half.metadata.message_index for half in each.messages)
        )
    ]
    for each in plan.dead:
        told = each.half.metadata
        lines += dead(told.transaction_id, each.reason.value, told.message_index)
    for each in plan.junk:
        lines += junk_buried("op" if each.is_op else "half", each.record.offset)
    for each in plan.put_backs:
        told = each.metadata
        lines += put_back(
            told.transaction_id, each.rule.value, told.check_times, told.message_index
        )
    for each in plan.discards:
        lines += discard_written(each.transaction_id, each.reason)
    return lines


def _asked(check: Check) -> tuple[str, int, int]:
    return check.half.metadata.transaction_id, check.check_number, check.attempt


def _compare(expected: list[str], actual: list[str]) -> None:
    if expected != actual:
        diff = "\n".join(ndiff(expected, actual))
        raise AssertionError(f"- expected, + actual\n{diff}")
