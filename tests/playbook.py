"""Playbooks for the ledger: what is read, and what must be written, line by line.

    book = Playbook() >> half("A") >> wait(TIMEOUT_MS) >> op_end << asked("A")
    book >> commit("A") << delivered("A")

Read aloud: the half message of A is stored, nobody decides until the timeout is over, and the
ledger learns that the op partition ends there: it asks about A. The COMMIT of A is stored, and A
is delivered.

`>>` does a step: it appends a record to the half or op partition, or does what its name says
(`wait`, `restart`, ...). Then the ledger reads both partitions to their ends.

`<<` says what comes of it, by its right side:

- lines (`delivered`, `put_back`, `dead`, `nothing`, ...; several with +): the ledger's next plan
  writes these and nothing else. The plan is committed: copies and discards that it writes are
  appended to the log, as by a kafka_txn, and read with the next step.
- `asked`, `all_asked`, `nobody_asked`: these checks are sent now, in this order. A check waits
  until the ops before it are applied, and a plan applies them: `<< nothing` in front takes one.
- `counted`, `nothing_counted`: what the plan before has counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import ndiff

from halfbridge.checker.core.events import JunkRead
from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.core.plan import Check, Count, Plan
from halfbridge.serde.progress import START
from halfbridge.serde.protocol import NO_APPEND_MS, REASON_AGE
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind, OpSource
from tests.ledger_log import (  # noqa: F401  (a script imports all its words from here)
    BEGIN_MS,
    HALF_BYTES_MAX,
    HOUR_MS,
    INTERVAL_MS,
    MINUTE_MS,
    SECOND_MS,
    SETTINGS,
    TIMEOUT_MS,
    UNLIMITED,
    Lines,
    Log,
    Reader,
    dead,
    dead_by_reference,
    delivered,
    discard_written,
    junk_letter,
    metadata,
    nothing,
    op_record,
    outcomes,
    put_back,
)

# --- steps (right of >>) -------------------------------------------------------------------

Step = Callable[["Playbook"], None]


def half(
    name: str,
    index: int = 0,
    *,
    flaw: str = "",
    size_bytes: int = 100,
    user_bytes: int = 0,
    **fields: object,
) -> Step:
    """Store message `index` of transaction `name`; `fields` are those of HalfMetadata."""

    def step(book: Playbook) -> None:
        offset = book.log.append_half(
            metadata(name, index)._replace(**fields),
            book.now_ms,
            flaw=flaw,
            size_bytes=size_bytes,
            user_bytes=user_bytes,
        )
        book.last_offset[name] = offset

    return step


def half_without_time(name: str, index: int = 0, **fields: object) -> Step:
    """Store a message whose timestamp is its writer's (CreateTime)."""

    def step(book: Playbook) -> None:
        said = metadata(name, index)._replace(**fields)
        book.last_offset[name] = book.log.append_half(said, NO_APPEND_MS)

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


def discard_for_age(name: str, age_ms: int) -> Step:
    """Say DISCARD as the daemon does that claims `age_ms`."""
    return discard(name, OpSource.CHECKER, reason=REASON_AGE, age_ms=age_ms)


def junk_half(detail: str = "no RMQ_HALF header") -> Step:
    """Store a half record that cannot be read."""

    def step(book: Playbook) -> None:
        log = book.log
        log.half.append(JunkRead(log.half_end, book.now_ms, detail, 100, ("body", log.half_end)))
        log.half_end += 1

    return step


def junk_op(detail: str = "broken body") -> Step:
    """Store an op record that cannot be read."""

    def step(book: Playbook) -> None:
        log = book.log
        log.op.append(JunkRead(log.op_end, book.now_ms, detail, 100, ("body", log.op_end)))
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
    """Learn where the op partition ends now: only then is it certain that nobody has decided."""
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
    """These checks are sent now, in this order.

    Attributes:
        checks: Transaction, check number, and which attempt of that number it is.
    """

    checks: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Counted:
    """The plan just taken counted this and nothing else."""

    counts: tuple[tuple[Count, int], ...]


def asked(name: str, number: int = 1, attempt: int = 1) -> Asked:
    """A check is sent; several are `all_asked`."""
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
        self.ledger.committed(self.progress)


def _asked(check: Check) -> tuple[str, int, int]:
    return check.half.metadata.transaction_id, check.check_number, check.attempt


def _compare(expected: list[str], actual: list[str]) -> None:
    if expected != actual:
        diff = "\n".join(ndiff(expected, actual))
        raise AssertionError(f"- expected, + actual\n{diff}")
