"""A log in memory for the ledger: two partitions, what is read from them and written to them."""

from dataclasses import dataclass, field

from halfbridge.checker.core.events import NO_KEY, HalfRead, JunkRead, OpRead, message_bytes
from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.core.plan import Plan
from halfbridge.checker.core.settings import OP_WAIT_MS, LedgerSettings
from halfbridge.serde.progress import Progress
from halfbridge.serde.records import HalfMetadata, Op, OpKind
from tests.kit.records import A_HALF, AN_OP

BEGIN_MS = 1_000_000
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
TIMEOUT_MS = 6 * SECOND_MS
INTERVAL_MS = 30 * SECOND_MS
UNLIMITED = 1 << 60
# What the half topic takes; for a copy one byte less.
HALF_BYTES_MAX = 20_000_000
OP_VALUE_BYTES = 100

SETTINGS = LedgerSettings(
    transaction_timeout_ms=TIMEOUT_MS,
    check_interval_ms=INTERVAL_MS,
    check_count_max=15,
    transaction_age_ms_max=72 * HOUR_MS,
    check_backoff_ms_max=10 * MINUTE_MS,
    republish_window_records=100_000,
    republish_window_bytes=UNLIMITED,
    ledger_bytes_max=UNLIMITED,
    entries_bytes_max=UNLIMITED,
    unanswered_before_discard=3,
    readiness_before_discard_ms=HOUR_MS,
    actor="worker-0",
    allows=lambda _group, topic: topic != "forbidden",
    copy_fits=lambda half: half.size_bytes < HALF_BYTES_MAX,
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
        self,
        metadata: HalfMetadata,
        append_ms: int,
        *,
        flaw: str = "",
        size_bytes: int = 100,
        user_bytes: int = 0,
        key_number: int = NO_KEY,
    ) -> int:
        """Append a half record and return its offset."""
        offset = self.half_end
        body = ("body", offset)
        weight = message_bytes(metadata)
        self.half.append(
            HalfRead(
                offset,
                append_ms,
                metadata,
                flaw,
                size_bytes,
                body,
                user_bytes,
                weight,
                size_bytes,
                key_number,
            )
        )
        self.half_end += 1
        return offset

    def append_op(self, op: Op, append_ms: int) -> int:
        """Append an op record and return its offset."""
        offset = self.op_end
        self.op.append(OpRead(offset, append_ms, op, OP_VALUE_BYTES))
        self.op_end += 1
        return offset

    def write(self, plan: Plan, now_ms: int) -> int:
        """Write what `plan` says as one kafka_txn; return the end of its copies, 0 without any."""
        self.written += outcomes(plan)
        copies_end = 0
        for each in plan.put_backs:
            half = each.half
            self.append_half(
                each.metadata,
                now_ms,
                flaw=half.flaw,
                size_bytes=half.size_bytes,
                user_bytes=half.user_bytes,
                key_number=half.key_number,
            )
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
        self.read_half()
        self.read_op()


# --- records -------------------------------------------------------------------------------


def metadata(name: str, index: int = 0) -> HalfMetadata:
    """Return what an original's header says."""
    return A_HALF._replace(transaction_id=name, message_index=index, born_timestamp=1)


def op_record(name: str, kind: OpKind, *, half_offset: int) -> Op:
    """Return what the producer of `name` would say."""
    return AN_OP._replace(transaction_id=name, kind=kind, half_offset=half_offset, timestamp=1)


# --- what a plan writes, in words ----------------------------------------------------------

Lines = tuple[str, ...]
nothing: Lines = ()


def delivered(name: str, *indices: int) -> Lines:
    """Messages of a transaction, delivered in this order; without indices: its only one."""
    return tuple(f"deliver {name}[{index}]" for index in indices or (0,))


def dead(name: str, reason: str, index: int = 0) -> Lines:
    """A message goes to the dead-letter topic."""
    return (f"dead {name}[{index}] {reason}",)


def dead_by_reference(name: str, reason: str, index: int = 0) -> Lines:
    """A dead letter that refers to the half record goes to the dead-letter topic."""
    return (f"dead {name}[{index}] {reason} by reference",)


def put_back(name: str, rule: str, check_times: int = 0, index: int = 0) -> Lines:
    """A copy of a half message is appended."""
    return (f"put back {name}[{index}] by {rule}, {check_times} answered",)


def discard_written(name: str, reason: str) -> Lines:
    """The daemon's DISCARD is appended to the op partition."""
    return (f"write DISCARD of {name} {reason}",)


def junk_letter(partition: str, offset: int) -> Lines:
    """A record that cannot be read goes to the dead-letter topic."""
    return (f"dead junk {partition}@{offset}",)


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
        reported = each.half.metadata
        words = dead_by_reference if each.by_reference else dead
        lines += words(reported.transaction_id, each.reason.value, reported.message_index)
    for each in plan.junk:
        lines += junk_letter("op" if each.is_op else "half", each.record.offset)
    for each in plan.put_backs:
        reported = each.metadata
        lines += put_back(
            reported.transaction_id, each.rule.value, reported.check_times, reported.message_index
        )
    for each in plan.discards:
        lines += discard_written(each.transaction_id, each.reason)
    return lines


def tell_half_end(ledger: Ledger, end: int, now_ms: int) -> None:
    """Have it asked where the half partition ends, and prove it."""
    ledger.wants_half_end(now_ms)
    token = ledger.wants_half_end(now_ms + OP_WAIT_MS)
    if token is not None:
        ledger.half_end(end, token)
