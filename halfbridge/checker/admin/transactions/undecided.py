"""Finds the undecided transactions of an installation, by the ledger's own rebuild.

For each pair a ledger is rebuilt from the committed offsets, as a worker does at its start: half
records from H and ops from T, up to the end of the log. Its plans are discarded, so nothing is
delivered, asked or discarded in the logs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.real_topics import describe_command
from halfbridge.checker.admin.topics import common_partitions
from halfbridge.checker.admin.transactions import asked
from halfbridge.checker.admin.transactions.logs import (
    Scan,
    Span,
    edges,
    half_read,
    leaderless,
    op_read,
    partition_counts,
    stable_ends,
)
from halfbridge.checker.admin.transactions.waits import WaitContext, undecided_of
from halfbridge.checker.core.events import HalfRead, JunkRead
from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.core.rebuild import check_against_log
from halfbridge.checker.core.settings import LedgerSettings
from halfbridge.checker.errors import AdminRequestError, AdminSetupError, DamagedRecordError
from halfbridge.kafka.ports import Edge
from halfbridge.serde.progress import ProgressError, parse_progress
from halfbridge.serde.protocol import decision_of
from halfbridge.serde.records import OpKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.read import Key
    from halfbridge.checker.admin.transactions.waits import Limits, Undecided
    from halfbridge.checker.core.entries import Entry
    from halfbridge.kafka.ports import StoredRecord, TopicPartition
    from halfbridge.serde.progress import Progress
    from halfbridge.serde.records import Op
    from halfbridge.serde.signatures import Verifier
    from halfbridge.serde.topics import TopicNames

# The window rule bounds what there is to read while a daemon runs: 100,000 records of a pair and 4
# for each undecided one. After days without a daemon there is more. This many take about two
# minutes (`find.RECORDS_MAX`).
RECORDS_MAX = 20_000_000
# As the daemon's `entries_bytes_max`: 1.9 million undecided transactions of one message.
ENTRIES_BYTES_MAX = 2304 * 1024 * 1024
# The newest undecided answers of a pair that are kept, to explain waits: those of ten seconds at
# the default of check_rate_max.
ANSWERS_MAX = 200_000
# Ops below T that are read as well, a pair: a rebuild needs none of them, but answers that did not
# count are among them, and explain why a check was not answered. Less than a tenth of a second's
# reading (`look_up.READ_ON_RECORDS`).
OPS_BEFORE = 20_000
# No plan is written, so none has to be small.
_PLAN_MAX = 1 << 60
# Bodies are not shown, so few are kept: 64 MiB a pair, besides ENTRIES_BYTES_MAX.
_BODIES_MAX = 64 * 1024 * 1024


class Stopped(NamedTuple):
    """A pair whose undecided transactions are unknown.

    Its committed offsets cannot be trusted, one of its records is damaged, or it has no leader.
    """

    partition: int
    why: str
    needs_init: bool = True

    @property
    def remedy(self) -> str:
        """The operator's next step, as the end of a sentence; empty: `why` contains it."""
        init = f"; run halfbridge checker init --partition {self.partition}"
        return init if self.needs_init else ""


class PairState:
    """The state of one pair, by its logs.

    Attributes:
        ledger: Rebuilt, and brought to the end of the log.
        answers: The last answer of a transaction that decides nothing.
    """

    def __init__(self, partition: int, progress: Progress, settings: LedgerSettings) -> None:
        self.partition = partition
        self.progress = progress
        self.ledger = Ledger(settings, progress)
        self.answers: dict[Key, Op] = {}
        self.ops: Counter[tuple[str, OpKind]] = Counter()

    def waiting(self) -> dict[Key, str]:
        """Return the decisions that cannot be applied yet, by transaction: their kinds."""
        return {
            _key(read.op): read.op.kind.value
            for read in self.ledger.waiting()
            if decision_of(read.op) is not None
        }


def _key(op: Op) -> Key:
    return op.transaction_id, op.resume_count, op.producer_group


def read_pairs(
    cluster: Cluster,
    names: TopicNames,
    limits: Limits,
    *,
    partitions: Collection[int] | None = None,
    on_progress: Callable[[int], None] = lambda _records: None,
) -> tuple[list[PairState], list[Stopped]]:
    """Return the state of the pairs, and which pairs are stopped; change nothing.

    `on_progress` is called with the number of records that were read so far.

    Raises:
        AdminError: There are no such topics or pairs, the brokers do not answer, or there is more
            to read than RECORDS_MAX and ENTRIES_BYTES_MAX allow; the text says what to do.
    """
    numbers = wanted_partitions(cluster, names, partitions)
    begun = begun_of(cluster, names, numbers)
    settings = reading_settings(limits)
    while True:  # once more for each pair with a damaged record
        pairs = [
            PairState(number, progress, settings)
            for number, progress in begun.items()
            if not isinstance(progress, Stopped)
        ]
        try:
            _read(cluster, names, {pair.partition: pair for pair in pairs}, on_progress)
        except DamagedRecordError as error:
            number = error.place[1]
            begun[number] = Stopped(number, str(error), needs_init=False)
        else:
            return pairs, [each for each in begun.values() if isinstance(each, Stopped)]


def wanted_partitions(
    cluster: Cluster, names: TopicNames, partitions: Collection[int] | None
) -> list[int]:
    """Return the numbers of the pairs to read.

    Raises:
        AdminSetupError: there are no such topics; the operator follows the text.
        AdminRequestError: there is no such pair; the operator corrects the command.
    """
    count = common_partitions(cluster, names)
    if not count:
        raise AdminSetupError(
            f"there is no topic {names.half} or {names.op} (or no right to see it): check"
            " --topic-prefix, or run halfbridge topics create",
            topics=(names.half, names.op),
        )
    missing = sorted(each for each in partitions or () if not 0 <= each < count)
    if missing:
        raise AdminRequestError(
            f"--partition {missing[0]}: there is no such pair; half and op have {count}"
        )
    return sorted(set(partitions)) if partitions else list(range(count))


def reading_settings(limits: Limits) -> LedgerSettings:
    """Return the settings of a ledger that only reads: no window is kept, no copy is refused."""
    return LedgerSettings(
        transaction_timeout_ms=limits.transaction_timeout_ms,
        check_interval_ms=limits.check_interval_ms,
        check_count_max=limits.check_count_max,
        transaction_age_ms_max=limits.transaction_age_ms_max,
        check_backoff_ms_max=limits.check_backoff_ms_max,
        republish_window_records=_PLAN_MAX,
        republish_window_bytes=_PLAN_MAX,
        ledger_bytes_max=_BODIES_MAX,
        entries_bytes_max=_PLAN_MAX,
        unanswered_before_discard=0,
        readiness_before_discard_ms=0,
        actor="",
        allows=lambda _group, _topic: True,
        copy_fits=lambda _half: True,
    )


def begun_of(
    cluster: Cluster, names: TopicNames, numbers: Collection[int]
) -> dict[int, Progress | Stopped]:
    """Return each pair's committed progress, or why it is unusable."""
    begun: dict[int, Progress | Stopped] = {}
    for topic, number in sorted(leaderless(cluster)):
        if topic in (names.half, names.op) and number in numbers:
            why = f"partition {number} of {topic} has no leader; run {describe_command(topic)}"
            begun[number] = Stopped(number, why, needs_init=False)
    numbers = [number for number in numbers if number not in begun]
    places = [(topic, number) for number in numbers for topic in (names.half, names.op)]
    if not places:
        return begun
    committed = cluster.committed(names.daemon_group, places)
    starts, ends = edges(cluster, places, Edge.START), edges(cluster, places, Edge.END)
    for number in numbers:
        half, op = (names.half, number), (names.op, number)
        at_op = committed[op]
        try:
            progress = parse_progress(committed[half].offset, at_op.offset, at_op.metadata)
            begun[number] = check_against_log(
                progress, (starts[half], ends[half]), (starts[op], ends[op])
            )
        except ProgressError as error:
            begun[number] = Stopped(number, str(error))
    return begun


def _spans(
    cluster: Cluster, names: TopicNames, pairs: Mapping[int, PairState]
) -> dict[TopicPartition, Span]:
    begun = {number: pair.progress for number, pair in pairs.items()}
    # Ops first: the half message of an op that can be read was stored before the op.
    ops = stable_ends(cluster, {(names.op, number): at.op for number, at in begun.items()})
    halves = stable_ends(
        cluster, {(names.half, number): at.rebuild_to for number, at in begun.items()}
    )
    starts = edges(cluster, ops, Edge.START)
    return {
        **{place: Span(begun[place[1]].half, end) for place, end in halves.items()},
        **{
            place: Span(max(starts[place], begun[place[1]].ops_from - OPS_BEFORE), end)
            for place, end in ops.items()
        },
    }


def _read(
    cluster: Cluster,
    names: TopicNames,
    pairs: Mapping[int, PairState],
    on_progress: Callable[[int], None],
) -> None:
    spans = _spans(cluster, names, pairs)
    wanted = sum(span.end - span.start for span in spans.values())
    if wanted > RECORDS_MAX:
        raise AdminRequestError(
            f"{wanted} records would have to be read, more than {RECORDS_MAX}: start the daemon,"
            " which shortens what is left to read, or choose a pair with --partition"
        )
    records, now_ms = 0, 0
    for batch in Scan(cluster, spans).batches():
        now_ms = max(now_ms, _take(batch, names.half, pairs, cluster.signatures.verifier))
        records += len(batch)
        _apply(pairs.values(), now_ms)
        on_progress(records)
    for (topic, number), span in spans.items():
        ledger = pairs[number].ledger
        (ledger.half_read_to if topic == names.half else ledger.op_read_to)(span.end)
    _apply(pairs.values(), now_ms)


def _take(
    batch: list[StoredRecord],
    half_topic: str,
    pairs: Mapping[int, PairState],
    verifier: Verifier | None,
) -> int:
    """Give the records to their ledgers; return the newest append time."""
    newest_ms = 0
    for record in batch:
        pair = pairs[record.partition()]
        if record.topic() == half_topic:
            half = half_read(record, verifier, with_key=True)
            if type(half) is HalfRead:
                pair.ledger.half(half)
            elif isinstance(half, JunkRead):
                pair.ledger.junk_half(half)
            newest_ms = max(newest_ms, half.append_ms)
            continue
        ledger = pair.ledger
        read = op_read(record, verifier)
        if isinstance(read, JunkRead):
            if read.offset >= pair.progress.ops_from:
                ledger.junk_op(read)
            continue
        op = read.op
        if read.offset >= pair.progress.ops_from:
            ledger.op(read)
        pair.ops[op.producer_group, op.kind] += 1
        if op.kind is OpKind.UNKNOWN:
            pair.answers[_key(op)] = op
    return newest_ms


def _was_deferred(_messages: Sequence[HalfRead], _op_append_ms: int, again: bool) -> bool:  # noqa: FBT001  (as `Awaits` says)
    """Keep the deliveries deferred that the committed progress says are."""
    return again


def _apply(pairs: Collection[PairState], now_ms: int) -> None:
    """Let the ledgers apply all possible ops, and forget decided transactions."""
    entries_bytes = 0
    for pair in pairs:
        ledger = pair.ledger
        ledger.plan(now_ms, records_max=_PLAN_MAX, size_bytes_max=_PLAN_MAX, awaits=_was_deferred)
        ledger.committed(ledger.progress())
        entries_bytes += ledger.memory.entries_bytes
        while len(pair.answers) > ANSWERS_MAX:
            del pair.answers[next(iter(pair.answers))]
    if entries_bytes > ENTRIES_BYTES_MAX:
        raise AdminRequestError(
            f"what is undecided takes more than {ENTRIES_BYTES_MAX >> 20} MiB of memory: choose a"
            " pair with --partition"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which undecided transactions are wanted."""

    # group, topic: producer group, and real topic of the first message; empty: any.
    group: str = ""
    topic: str = ""
    older_than_ms: int = 0  # least age. One whose age is not known is left out if this is above 0
    partitions: tuple[int, ...] | None = None  # the pairs; None: all
    limit: int | None = None  # most transactions, the oldest ones; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What `list_undecided` found."""

    # The wanted transactions, the oldest first; transactions of unknown age come last.
    transactions: tuple[Undecided, ...]
    undecided: int  # how many are wanted, with those beyond the limit
    stopped: tuple[Stopped, ...]  # pairs whose undecided transactions are unknown
    at_ms: int  # when this was found, by the operator's clock


def list_undecided(
    cluster: Cluster,
    names: TopicNames,
    wanted: Filter,
    *,
    on_progress: Callable[[int], None] = lambda _records: None,
) -> Listing:
    """Return the undecided transactions, the oldest first; change nothing."""
    limits = asked.daemon_limits(cluster, names)
    pairs, stopped = read_pairs(
        cluster, names, limits, partitions=wanted.partitions, on_progress=on_progress
    )
    now_ms = cluster.ports.clock.time_ms()
    oldest_ms = now_ms - wanted.older_than_ms if wanted.older_than_ms else None
    entries = [
        (entry, pair)
        for pair in pairs
        for entry in pair.ledger.undecided()
        if _is_wanted(entry, wanted, oldest_ms)
    ]
    entries.sort(key=_age_order)
    shown = entries[: wanted.limit]
    answers = {key: op for pair in pairs for key, op in pair.answers.items()}
    world = replace(_world(cluster, names, shown, limits, now_ms), answers=answers)
    waiting = {key: kind for pair in pairs for key, kind in pair.waiting().items()}
    return Listing(
        transactions=tuple(
            undecided_of(
                entry,
                pair.partition,
                world,
                decision=waiting.get(_entry_key(entry), "") if waiting else "",
            )
            for entry, pair in shown
        ),
        undecided=len(entries),
        stopped=tuple(stopped),
        at_ms=now_ms,
    )


def _is_wanted(entry: Entry, wanted: Filter, oldest_ms: int | None) -> bool:
    if wanted.group and entry.group != wanted.group:
        return False
    if oldest_ms is not None and not 0 <= entry.first_append_ms <= oldest_ms:
        return False
    first = entry.messages[min(entry.messages)].metadata
    return not wanted.topic or first.real_topic == wanted.topic


def _age_order(found: tuple[Entry, PairState]) -> tuple[bool, int, int, int]:
    entry, pair = found
    return entry.first_append_ms < 0, entry.first_append_ms, pair.partition, entry.last_record


def _entry_key(entry: Entry) -> Key:
    metadata = entry.messages[min(entry.messages)].metadata
    return metadata.transaction_id, metadata.resume_count, entry.group


def _world(
    cluster: Cluster,
    names: TopicNames,
    shown: Sequence[tuple[Entry, PairState]],
    limits: Limits,
    now_ms: int,
) -> WaitContext:
    if not shown:
        return WaitContext(now_ms=now_ms, limits=limits)
    counts = partition_counts(cluster)
    by_group = Counter(entry.group for entry, _ in shown)
    groups = [
        group for group, _ in by_group.most_common(asked.GROUPS_MAX) if names.check(group) in counts
    ]
    members = asked.members_of(
        cluster, [names.daemon_group, *(names.check_group(group) for group in groups)]
    )
    found = asked.requests(
        cluster,
        [place for group in groups for place in asked.check_places(names, group, counts)],
        since_ms=max(0, shown[0][0].first_append_ms),
        records_max=asked.REQUESTS_MAX,
    )
    workers = members.get(names.daemon_group)
    return WaitContext(
        now_ms=now_ms,
        limits=limits,
        workers=None if workers is None else len(workers),
        check_topics=frozenset(group for group in by_group if names.check(group) in counts),
        members={
            group: len(members[names.check_group(group)])
            for group in groups
            if names.check_group(group) in members
        },
        asked=asked.asked_by_transaction(found),
    )
