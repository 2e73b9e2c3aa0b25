"""What a worker reports: metrics and log lines of each plan, and its health each second.

While the log level is debug, there is also one line for each check, answer, decision and delivery,
by transaction id (`trace_...`). At any other level nothing is formatted, decoded or counted for
these lines: the loop calls `is_traced` once for each fetch and each plan.
"""

from __future__ import annotations

import logging
from collections import Counter
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from halfbridge.checker.admin.real_topics import create_command
from halfbridge.checker.core.deferred import MISSING, Lack
from halfbridge.checker.core.plan import Count
from halfbridge.kafka.error_log import OncePerName
from halfbridge.logs import about, one_line
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of, trace_id_of
from halfbridge.serde.protocol import is_failed_attempt
from halfbridge.serde.records import PARTITION_BY_KEY, DeadDecision, OpKind, OpSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.events import HalfRead
    from halfbridge.checker.core.plan import Check, DeadHalf, Plan
    from halfbridge.checker.loop.assignment import Assignment
    from halfbridge.checker.loop.intake import Input
    from halfbridge.checker.loop.pair import Pair
    from halfbridge.checker.loop.routes import Routes
    from halfbridge.checker.loop.topic_watch import TopicWatch
    from halfbridge.checker.loop.tracing import WorkerTracing
    from halfbridge.checker.metrics import Metrics
    from halfbridge.checker.status import Status
    from halfbridge.kafka.ports import Clock, Record, TopicPartition
    from halfbridge.serde.records import Op

# The same trouble of one name is logged again after this time, twelve times an hour; metrics count
# it meanwhile. At most REPORTED_MAX names are kept, because clients invent names.
REPORTED_AGAIN_S = 300.0
REPORTED_MAX = 1000
# A client can cause a log line by each half or op record that it writes. 20 lines a second are some
# 300 MB a day.
LINES_A_SECOND_MAX = 20
# Counted instead of a resolution: a member answered, and its checker failed.
FAILED = "FAILED"
# Appended to the log line of a dead letter whose transaction was committed: the service believes
# that the message was delivered.
_COMMITTED = "; the transaction was COMMITTED, and this message of it is not delivered"
# Answers that decide a transaction, unless its producer has decided before.
_DECISIONS = (OpKind.COMMIT, OpKind.ROLLBACK)
# At most this many missing topics are named in one text, which stays a line; the gauge counts all.
SHOWN_MAX = 3
# At most this many partitions that are away have a series of their own. An alert needs one, and a
# lost broker may take thousands away.
GAUGES_MAX = 20
_log = logging.getLogger("halfbridge.checker")


def report_limiter() -> OncePerName:
    """Return a limiter of reports about names that clients choose."""
    return OncePerName(REPORTED_AGAIN_S, REPORTED_MAX)


class LimitedLog:
    """Logs lines about records of clients, at most LINES_A_SECOND_MAX a second."""

    def __init__(self, clock: Clock, level: int = logging.WARNING) -> None:
        self._clock = clock
        self._level = level
        self._since = -inf
        self._logged = self._left_out = 0

    def log(self, text: str, *arguments: object, **fields: object) -> None:
        """Log a line, or count it among those left out; `fields` as in `halfbridge.logs.about`."""
        now = self._clock.monotonic()
        if now - self._since >= 1:
            if self._left_out:
                _log.log(self._level, "%d more lines like these were left out", self._left_out)
            self._since, self._logged, self._left_out = now, 0, 0
        if self._logged < LINES_A_SECOND_MAX:
            self._logged += 1
            _log.log(self._level, text, *arguments, extra=about(**fields))
        else:
            self._left_out += 1


class Reporter:
    """Reports the effects of plans."""

    def __init__(
        self, metrics: Metrics, clock: Clock, tracing: WorkerTracing | None = None
    ) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._failed = report_limiter()
        self._lines = LimitedLog(clock)
        self._answers = LimitedLog(clock, logging.INFO)

    def written(self, plan: Plan, pair: Pair, *, refused: Sequence[DeadHalf], stubs: int) -> None:
        """Report that `plan` is committed; its `refused` messages became dead letters."""
        metrics = self._metrics
        if plan.deliveries:
            self._delivered(plan, refused)
        if plan.dead or plan.junk or refused:
            self._dead_lettered(plan, pair, refused)
        if stubs:
            metrics.stubs(stubs)
            self._lines.log(
                "partition %d: %d dead letters only refer to their records, which are deleted with"
                " the retention of the half and op topic",
                *(pair.partition, stubs),
            )
        if is_traced():
            trace_written(plan, pair.partition, refused=refused)
        if plan.put_backs:
            metrics.put_backs(Counter(one.rule.value for one in plan.put_backs))
        if plan.discards:
            metrics.discards(Counter(op.reason for op in plan.discards))
        if plan.rolled_back:
            metrics.rolled_back(plan.rolled_back)
        if plan.counts:
            self._counted(plan.counts)
        for note in plan.notes:
            self._lines.log("partition %d: %s", pair.partition, note)

    def answered(self, answers: Iterable[Op], monotonic_s: float) -> None:
        """Count answers to checks and failed attempts; log decisions, and failures now and then.

        A failure is logged once per group in REPORTED_AGAIN_S. Answers of UNKNOWN decide nothing.
        """
        counts: Counter[tuple[str, str]] = Counter()
        for op in answers:
            if not is_failed_attempt(op):
                counts[op.producer_group, op.kind.value] += 1
                if op.kind in _DECISIONS:
                    self._answers.log(
                        "a check of transaction %s is answered %s by group %s, at %s",
                        *(op.transaction_id, op.kind.value, op.producer_group, op.actor),
                        transaction_id=op.transaction_id,
                        producer_group=op.producer_group,
                        kind=op.kind,
                        actor=op.actor,
                    )
                continue
            counts[op.producer_group, FAILED] += 1
            if self._failed.is_due(op.producer_group, monotonic_s):
                self._lines.log(
                    "transaction %s stays undecided: the checker of group %s, at %s, failed: %s",
                    *(op.transaction_id, op.producer_group, op.actor, op.reason),
                    transaction_id=op.transaction_id,
                    producer_group=op.producer_group,
                    reason=op.reason,
                    actor=op.actor,
                )
        self._metrics.checks_answered(counts)

    def waits_for_topic(self, partition: int, lack: Lack) -> None:
        """Report that deliveries of a pair wait for a real topic or for a partition of it."""
        self._lines.log(
            "partition %d: deliveries wait, because %s; other deliveries go on. After %.0f s of"
            " waiting their transactions become dead letters, UNDELIVERABLE",
            *(partition, lack, lack.limit_ms / 1000),
            partition=partition,
            real_topic=lack.topic,
        )

    def state(
        self, pairs: Iterable[Pair], monotonic_s: float, retention_ms: tuple[int | None, int | None]
    ) -> None:
        """Set the gauges; retention is that of half and op topic, None where it is not known."""
        by_topic: Counter[str] = Counter()
        oldest_s = 0.0
        held_bytes = entries_bytes = fill_percent = 0
        for pair in pairs:
            ledger = pair.ledger
            by_topic.update(ledger.halves_by_topic)
            held_bytes += pair.bodies_bytes
            entries_bytes += pair.entries_bytes
            fill_percent = max(fill_percent, pair.fill_percent)
            first_ms = ledger.oldest_undecided_ms()
            if first_ms is not None:
                oldest_s = max(oldest_s, (pair.now_ms(monotonic_s) - first_ms) / 1000)
            if ledger.is_rebuilt:
                progress = ledger.progress()
                lag = self._metrics.lag
                lag(pair.partition, "H", records=progress.position - progress.half)
                lag(pair.partition, "O", records=ledger.ops_waiting)
                lag(pair.partition, "T", records=progress.op - progress.ops_from)
                left_s = _retention_left_s(pair, pair.now_ms(monotonic_s), retention_ms)
                self._metrics.retention_left_s(pair.partition, left_s)
        self._metrics.half_messages({t: n for t, n in by_topic.items() if n > 0})
        self._metrics.oldest_undecided_age_s(oldest_s)
        self._metrics.ledger_bytes(held_bytes)
        self._metrics.entries_bytes(entries_bytes, fullest=fill_percent / 100)

    def _delivered(self, plan: Plan, refused: Sequence[DeadHalf]) -> None:
        if self._tracing is not None:
            self._tracing.delivered(plan, refused)
        delivered: Counter[str] = Counter()
        latencies = []
        for one in plan.deliveries:
            if one.op_append_ms >= 0 and one.first_append_ms >= 0:
                latencies.append((one.op_append_ms - one.first_append_ms) / 1000)
            for half in one.messages:
                delivered[half.metadata.real_topic] += 1
        self._metrics.committed(delivered)
        self._metrics.finish_latencies_s(latencies)

    def _dead_lettered(self, plan: Plan, pair: Pair, refused: Sequence[DeadHalf]) -> None:
        reasons = Counter(one.reason.value for one in (*plan.dead, *refused))
        sent = [half for one in plan.deliveries for half in one.messages] if refused else ()
        with_bodies = {half.offset: half for half in sent}
        for dead in (*plan.dead, *refused):
            whole = with_bodies.get(dead.half.offset, dead.half)  # a refused one has no body
            self._dead_letter(dead, pair.partition, whole)
        if plan.junk:
            reasons["INVALID"] += len(plan.junk)
        doubted: Counter[str] = Counter()
        for junk in plan.junk:
            name, record = "op" if junk.is_op else "half", junk.record
            doubted[name] += record.is_not_believed
            self._lines.log(
                "dead letter, INVALID: the record at offset %d of %s partition %d %s: %s",
                *(record.offset, name, pair.partition),
                "is not believed" if record.is_not_believed else "cannot be read",
                record.detail,
                reason="INVALID",
                detail=record.detail,
                partition=pair.partition,
                offset=record.offset,
            )
        self._metrics.dead_letters(reasons)
        self._metrics.not_believed(+doubted)

    def _dead_letter(self, dead: DeadHalf, partition: int, whole: HalfRead) -> None:
        metadata, reason = dead.half.metadata, dead.reason.value
        self._lines.log(
            "dead letter, %s: message %d of transaction %s of group %s for topic %s, half offset %d"
            " of partition %d%s%s",
            *(reason, metadata.message_index, metadata.transaction_id, metadata.producer_group),
            *(metadata.real_topic, dead.half.offset, partition),
            _COMMITTED if dead.decision is DeadDecision.COMMIT else "",
            f": {dead.detail}" if dead.detail else "",
            transaction_id=metadata.transaction_id,
            producer_group=metadata.producer_group,
            message_index=metadata.message_index,
            real_topic=metadata.real_topic,
            reason=reason,
            detail=dead.detail,
            decision=dead.decision,
            partition=partition,
            offset=dead.half.offset,
            **_trace(whole),
        )

    def _counted(self, counts: Mapping[Count, int]) -> None:
        metrics = self._metrics
        for count, add in (
            (Count.DUPLICATE, metrics.duplicates),
            (Count.CONFLICT, metrics.conflicts),
            (Count.INVALID_OP, metrics.invalid_ops),
            (Count.ORPHAN_OP, metrics.orphan_ops),
            (Count.CHECK_EXPIRED, metrics.checks_expired),
            (Count.DEFERRED, metrics.deferred),
            (Count.WAIT_CUT_SHORT, metrics.waits_cut_short),
        ):
            if counts.get(count):
                add(counts[count])


class HealthReport:
    """Collects the present problems of a worker. Times are monotonic seconds."""

    def __init__(
        self,
        config: CheckerConfig,
        status: Status,
        *,
        topics: TopicWatch,
        routes: Routes,
        intake: Input,
        reporter: Reporter,
    ) -> None:
        self._installation = config.bootstrap_servers, config.topic_prefix
        self._dead = config.names.dead
        self._status = status
        self._topics = topics
        self._routes = routes
        self._input = intake
        self._reporter = reporter
        self._own_away: Mapping[TopicPartition, str] = {}
        self._waited: set[tuple[int, str, int]] = set()  # (pair, topic, partition) with a log line

    def refresh(self, now: float, assignment: Assignment, *, barriers_problem: str) -> None:
        """Update health, gauges and log lines."""
        missing = f"{self._dead} is missing: `halfbridge topics create` makes it"
        self._status.set_problem("dead letters", missing if self._topics.lacks_dead else "")
        self._status.set_problem("group", self._input.group_trouble.text(now))
        self._status.set_problem("memory", assignment.memory_trouble())
        self._status.set_problem("barriers", barriers_problem)
        self._report_own()
        self._report_waits(assignment.pairs.values(), int(now * 1000))

    def _report_own(self) -> None:
        """Tell which partitions of half, op and dead-letter topic concern this worker, and wait."""
        own = {
            place: why
            for place, why in self._topics.own_away().items()
            if place in self._input.assigned or place[0] == self._dead
        }
        texts = []
        for (topic, number), why in sorted(own.items()):
            lack = Lack(topic, number, why)
            texts.append(f"{lack}: its transactions wait, others go on")
            if (topic, number) not in self._own_away:
                _log.warning("%s: its transactions wait, others go on", lack)
        self._own_away = own
        more = [f"and {len(own) - SHOWN_MAX} more"] if len(own) > SHOWN_MAX else []
        self._status.set_problem("own partitions", "; ".join([*texts[:SHOWN_MAX], *more]))

    def _report_waits(self, pairs: Iterable[Pair], now_ms: int) -> None:
        waited = {
            (pair.partition, lack.topic, lack.partition): lack
            for pair in pairs
            for entry, _ in pair.ledger.deferred
            for lack in self._routes.lacks(entry.messages.values(), now_ms)
        }
        for place, lack in waited.items():
            if place not in self._waited:
                self._reporter.waits_for_topic(place[0], lack)
        self._waited = set(waited)
        away = {
            (lack.topic, str(lack.partition), lack.why): 1
            for lack in waited.values()
            if lack.partition != PARTITION_BY_KEY
        }
        away |= {(place[0], str(place[1]), why): 1 for place, why in self._own_away.items()}
        self._status.metrics.partitions_unavailable(dict(islice(away.items(), GAUGES_MAX)))
        by_topic = Counter(lack.topic for lack in waited.values())
        self._status.metrics.real_topics_missing(by_topic)
        self._status.set_problem("real topics", self._missing([*waited.values()]))

    def _missing(self, lacks: list[Lack]) -> str:
        if not lacks:
            return ""
        found = Counter((each.topic, each.partition, each.why) for each in lacks)
        texts = [
            f"deliveries of {'1 pair' if count == 1 else f'{count} pairs'} wait, because"
            f" {self._text(Lack(one_line(topic), number, why))}"
            for (topic, number, why), count in found.most_common(SHOWN_MAX)
        ]
        if len(found) > SHOWN_MAX:
            texts.append(f"and {len(found) - SHOWN_MAX} more")
        return "; ".join(texts)

    def _text(self, lack: Lack) -> str:
        if lack.why != MISSING:
            return f"{lack}"
        return f"{lack}; create it: {create_command(lack.topic, *self._installation)}"


def _retention_left_s(
    pair: Pair, now_ms: int, retention_ms: tuple[int | None, int | None]
) -> float:
    """Return in how many seconds retention deletes the first needed record of a pair."""
    left_s = [
        (needed_ms + kept_ms - now_ms) / 1000
        for needed_ms, kept_ms in zip(pair.ledger.oldest_needed_ms(), retention_ms, strict=True)
        if needed_ms is not None and kept_ms is not None and kept_ms >= 0
    ]
    return min(left_s, default=inf)


def is_traced() -> bool:
    """Tell whether lines are wanted."""
    return _log.isEnabledFor(logging.DEBUG)


def trace_check(asked: Check, partition: int, *, topic: str) -> None:
    """Log that a producer group is asked about a transaction."""
    metadata = asked.half.metadata
    _line(
        "check %d of transaction %s is asked of group %s, request %d of it, on topic %s",
        *(asked.check_number, metadata.transaction_id, metadata.producer_group, asked.attempt),
        topic,
        event="check",
        transaction_id=metadata.transaction_id,
        producer_group=metadata.producer_group,
        check_number=asked.check_number,
        attempt=asked.attempt,
        partition=partition,
        offset=asked.half.offset,
        **_trace(asked.half),
    )


def trace_ops(records: Iterable[Record], op_topic: str) -> None:
    """Log the records of the op topic: decisions, and answers to checks."""
    for record in records:
        if record.error() is None and record.topic() == op_topic:
            _op(record)


def trace_written(plan: Plan, partition: int, *, refused: Sequence[DeadHalf]) -> None:
    """Log the effects of a committed kafka_txn, but for dead letters, which have lines anyway."""
    not_delivered = {dead.half.metadata.transaction_id for dead in refused}
    for one in plan.deliveries:
        if one.transaction_id in not_delivered:
            continue
        topics = ", ".join(dict.fromkeys(half.metadata.real_topic for half in one.messages))
        _line(
            "transaction %s of group %s is delivered: %d messages to %s",
            *(one.transaction_id, one.producer_group, len(one.messages), topics),
            event="delivery",
            transaction_id=one.transaction_id,
            producer_group=one.producer_group,
            messages=len(one.messages),
            real_topic=topics,
            partition=partition,
            offset=one.op_offset,
            **_trace(one.messages[0]),
        )
    for back in plan.put_backs:
        _line(
            "transaction %s of group %s is put back by %s, %d answers counted",
            *(back.metadata.transaction_id, back.metadata.producer_group, back.rule.value),
            back.metadata.check_times,
            event="put back",
            transaction_id=back.metadata.transaction_id,
            producer_group=back.metadata.producer_group,
            partition=partition,
            offset=back.half.offset,
            **_trace(back.half),
        )
    for op in plan.discards:
        _line(
            "transaction %s of group %s is to be discarded: %s",
            *(op.transaction_id, op.producer_group, op.reason),
            event="discard",
            transaction_id=op.transaction_id,
            producer_group=op.producer_group,
            reason=op.reason,
            partition=partition,
        )


def _op(record: Record) -> None:
    try:
        op = OP.decode(record.value() or b"")
    except DecodeError:  # it becomes a dead letter, which has a line
        return
    is_answer = op.source is OpSource.CHECK
    _line(
        "%s %s for transaction %s of group %s from %s, at offset %d of op partition %d",
        *("answer" if is_answer else "decision", op.kind.value, op.transaction_id),
        *(op.producer_group, op.source.value, record.offset(), record.partition()),
        event="answer" if is_answer else "decision",
        transaction_id=op.transaction_id,
        producer_group=op.producer_group,
        kind=op.kind,
        source=op.source,
        actor=op.actor,
        reason=op.reason,
        partition=record.partition(),
        offset=record.offset(),
    )


def _trace(half: HalfRead) -> dict[str, str]:
    """Return the trace of a message, as a field of its line; none where its body is not here."""
    found = "" if half.body is None else trace_id_of(headers_of(half.body))
    return {"trace_id": found} if found else {}


def _line(text: str, *arguments: object, **fields: object) -> None:
    _log.debug(text, *arguments, extra=about(**fields))
