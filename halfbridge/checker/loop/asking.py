"""Sends checks to producer groups, and asks brokers where partitions end."""

from __future__ import annotations

import logging
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING
from zlib import crc32

from halfbridge.checker.loop.clients import UnansweredTimer, client_config
from halfbridge.checker.loop.outlet import MESSAGE_BYTES_MAX, STALL_S, TRY_S
from halfbridge.checker.loop.pair import in_turn, restore_checks
from halfbridge.checker.loop.publish import TimestampSource
from halfbridge.checker.loop.report import is_traced, report_limiter, trace_check
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.error_log import ErrorLog
from halfbridge.kafka.errors import PURGED, Code, ConfigError, KafkaFailure
from halfbridge.logs import about
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.plan import Check
    from halfbridge.checker.loop.barriers import Barriers
    from halfbridge.checker.loop.clients import Questions
    from halfbridge.checker.loop.pair import BodyReader, Pair
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.checker.loop.topic_watch import TopicWatch
    from halfbridge.checker.loop.tracing import WorkerTracing
    from halfbridge.checker.metrics import Metrics
    from halfbridge.kafka.ports import ClientError, Ports, SentRecord
    from halfbridge.serde.records import Op

_log = logging.getLogger("halfbridge.checker")
# Bodies that are read again for one part of the checks. Without parts, a tenth of a second's checks
# may be 200 messages of a megabyte each. A fourth of what the queue may hold (_QUEUE_KIB_MAX).
PART_BYTES = 4_194_304
# A group that was asked this long ago and has answered nothing is reported. Twice the default of
# `check_interval_ms`: by then it was asked again, and repetitions go to other partitions.
SILENT_GROUP_S = 60.0
# Interval of the search for silent groups, and the most undecided transactions that one search
# counts: some 10 ms of work.
SILENT_POLL_S = 30.0
SILENT_COUNT_MAX = 10_000


class Asker:
    """Sends the questions of the ledgers, and hands the answers of brokers back to the ledgers."""

    def __init__(
        self,
        config: CheckerConfig,
        *,
        questions: Questions,
        barriers: Barriers,
        sender: CheckSender,
        bodies: BodyReader,
        topics: TopicWatch,
        metrics: Metrics,
        tracing: WorkerTracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._names = config.names
        self._pacer = Pacer(config.check_rate_max)
        self._unanswered = Unanswered(config.check_interval_ms / MS_PER_S)
        self._questions = questions
        self._barriers = barriers
        self._sender = sender
        self._bodies = bodies
        self._topics = topics
        self._metrics = metrics
        self._timestamps = TimestampSource()
        self._last = -1  # the pair that asked last
        self._topic_limiter = report_limiter()
        self._silent_limiter = report_limiter()
        self._silent_poll_at = 0.0

    def ask(self, pairs: Mapping[int, Pair], now: float) -> None:
        """Send the checks that are due and may be sent, and ask for the wanted ends."""
        waiting = len(pairs)
        room = partial(self._unanswered.room, now=now)
        for pair in in_turn(pairs, self._last):
            now_ms = pair.now_ms(now)
            ledger = pair.ledger
            share = -(-self._pacer.allowance(now) // waiting)  # rounded up: at least one
            waiting -= 1
            checks = ledger.checks(now_ms, share, room)
            if checks:
                self._pacer.spend(len(checks))
                self._last = pair.partition
                self._send(pair, checks, now)
            if ledger.wants_op_end:
                self._questions.ask_end(self._names.op, pair.partition, now_ms)
            doubt = ledger.wants_half_end(int(now * MS_PER_S))
            if doubt is not None and not self._topics.is_half_away(pair.partition):
                self._barriers.ask(pair.partition, doubt)
        begun = self._barriers.serve(now, TRY_S if self._topics.is_trying(now) else STALL_S)
        if begun:
            self._metrics.barriers(begun)
        self._sender.serve()
        if self._sender.untimely is not None:
            self._timestamps.refused(self._sender.untimely)
        if now >= self._silent_poll_at:
            self._silent_poll_at = now + SILENT_POLL_S
            self._report_silent(pairs, now)

    def answered(self, answers: Iterable[Op], now: float) -> None:
        """Record answers of producer groups; each answer allows the group another request."""
        for op in answers:
            self._unanswered.answered(op.producer_group, now)

    def handle_answers(self, pairs: Mapping[int, Pair], now: float) -> None:
        """Hand the brokers' answers to the ledgers."""
        for answer in self._questions.answers():
            pair = pairs.get(answer.partition)
            if pair is not None:
                pair.op_end(answer.end, answer.token)
        for proof in self._barriers.answers():
            pair = pairs.get(proof.partition)
            if pair is not None:
                pair.half_end(proof.end, proof.token)
        for number, is_clear in self._barriers.pop_silent().items():
            self._topics.half_is_silent(number, now, is_clear=is_clear)

    def _send(self, pair: Pair, checks: list[Check], now: float) -> None:
        sent: Counter[str] = Counter()
        are_traced = is_traced()
        read = partial(self._bodies.read, pair.partition)
        for check in chain.from_iterable(restore_checks(some, read) for some in in_parts(checks)):
            record = pair.publisher.check(check, pair.now_ms(now))
            # Without a check topic or room, the request counts as unanswered and is repeated.
            if self._topics.finds(record.topic, now):
                record = record._replace(
                    partition=spread(check, self._topics.partitions(record.topic)),
                    timestamp_ms=self._timestamps.ms(record.timestamp_ms, pair.latest_ms),
                )
                is_sent = self._sender.send(record, self._timestamps.turn)
                sent[check.half.metadata.producer_group] += is_sent
                if are_traced and is_sent:
                    trace_check(check, pair.partition, topic=record.topic)
                if self._tracing is not None and is_sent:
                    self._tracing.asked(check)
            else:
                self._nobody_to_ask(check.half.metadata.producer_group, record.topic, now)
        for group, count in sent.items():
            if count:
                self._unanswered.asked(group, count, now)
        self._metrics.checks_sent(sent)

    def _report_silent(self, pairs: Mapping[int, Pair], now: float) -> None:
        """Log now and then which groups answer nothing, and what an operator has to do."""
        silent = self._unanswered.silent_groups(now, SILENT_GROUP_S)
        if not silent:
            return
        ages: dict[str, list[float]] = {group: [] for group in silent}
        counted = list(islice(_asked(pairs, now), SILENT_COUNT_MAX))
        for group, age_s in counted:
            if group in ages:
                ages[group].append(age_s)
        is_all = len(counted) < SILENT_COUNT_MAX
        for group, of_group in ages.items():
            if not of_group:
                if is_all:
                    self._unanswered.nothing_open(group)
            elif self._silent_limiter.is_due(group, now):
                _log.warning(
                    "nobody answers checks of group %s: %s%d undecided transactions, the oldest for"
                    " %.0f s. Start a member of the group (a producer with its checker);"
                    " `halfbridge groups show %s` names the members that have answered",
                    *(group, "" if is_all else "at least ", len(of_group), max(of_group), group),
                    extra=about(
                        producer_group=group,
                        undecided=len(of_group),
                        oldest_s=round(max(of_group)),
                    ),
                )

    def _nobody_to_ask(self, group: str, topic: str, now: float) -> None:
        """Count the check, and log now and then what an operator has to do."""
        self._metrics.check_topic_missing(group)
        if not self._topic_limiter.is_due(topic, now):
            return
        _log.warning(
            "nobody can be asked about undecided transactions of group %s: topic %s does not exist"
            " (create it with `halfbridge topics create --producer-group %s`)",
            group,
            topic,
            group,
        )


def _asked(pairs: Mapping[int, Pair], now: float) -> Iterator[tuple[str, float]]:
    """Yield group and age in seconds of each undecided transaction that was asked about."""
    for pair in pairs.values():
        now_ms = pair.now_ms(now)
        for entry in pair.ledger.undecided():
            if entry.attempt:
                yield entry.group, (now_ms - entry.first_append_ms) / MS_PER_S


def in_parts(checks: list[Check]) -> Iterator[list[Check]]:
    """Yield the checks in parts with bodies of at most about `PART_BYTES` each."""
    part: list[Check] = []
    size_bytes = 0
    for check in checks:
        part.append(check)
        size_bytes += check.half.size_bytes
        if size_bytes >= PART_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


def spread(check: Check, partitions: int) -> int:
    """Return the check topic's partition for a request; each repetition asks another member."""
    return (crc32(check.half.metadata.transaction_id.encode()) + check.attempt) % partitions


_QUEUE_CHECKS_MAX = 20_000  # a second of checks at the default check_rate_max
# Bytes of the requests in the queue, which contain half messages: one batch of a kafka_txn.
_QUEUE_KIB_MAX = 16_384
# A request that was not sent by then is sent again when its transaction is due again (30 s).
REQUEST_MS_MAX = 5_000
# The client library's default: no answer is due within milliseconds.
_LINGER_MS = 5
# A refused timestamp. If a batch has several records with refused timestamps, librdkafka reports
# each record as invalid, without the reason.
_UNTIMELY = frozenset((Code.INVALID_TIMESTAMP, Code.INVALID_RECORD))
# No broker has answered for a request.
_UNANSWERED = frozenset((Code.MSG_TIMED_OUT, Code.FATAL))


class CheckSender:
    """Sends check requests, outside any kafka_txn: a lost request is repeated.

    A producer whose requests have all timed out for `REPLACED_AFTER_S`, or which has failed
    for good, is replaced. The worker that sends requests reads records meanwhile.
    """

    def __init__(
        self, config: CheckerConfig, ports: Ports, on_replaced: Callable[[], object] = lambda: None
    ) -> None:
        self._troubles = ErrorLog(_log, ports.clock)
        self._monotonic = ports.clock.monotonic
        self._kafka = ports.kafka
        self._on_replaced = on_replaced
        self._properties = {
            # The user's properties come after, and override it.
            "queue.buffering.max.messages": _QUEUE_CHECKS_MAX,
            "queue.buffering.max.kbytes": _QUEUE_KIB_MAX,
            **client_config(config),
            "enable.idempotence": True,
            "message.timeout.ms": REQUEST_MS_MAX,
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "linger.ms": _LINGER_MS,
        }
        self._silence = UnansweredTimer()
        self._writer = self._kafka.writer(self._properties)
        self.untimely: int | None = None  # the turn of `TimestampSource` that was refused last

    def send(self, record: Outgoing, turn: int) -> bool:
        """Send without waiting; False if the queue is full. `turn`: the timestamp's clock."""
        if self._silence.is_over_limit(self._monotonic()):
            self._replace()
        try:
            self._writer.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                partial(self._on_delivery, turn),
                record.timestamp_ms,
                record.headers,
            )
        except BufferError:
            return False
        except KafkaFailure as failure:
            if failure.code == Code.FATAL:  # an idempotent producer accepts no more records
                self._silence.goes_on(self._monotonic())
            return False
        return True

    def serve(self) -> None:
        """Serve delivery reports."""
        self._writer.poll(0)

    def close(self) -> None:
        """Drop the writer without waiting."""
        self._writer.close()

    def _replace(self) -> None:
        self._silence.end()
        with suppress(ConfigError):  # not possible now: the old producer is kept
            old, self._writer = self._writer, self._kafka.writer(self._properties)
            old.close()
            _log.warning("no check request was acknowledged for a while: new producer")
            self._on_replaced()

    def _on_delivery(self, turn: int, error: ClientError | None, _record: SentRecord) -> None:
        if error is None:
            self._silence.end()
            return
        code = failure_of(error).code
        if code in _UNANSWERED:
            self._silence.goes_on(self._monotonic())
        elif code > 0:  # a broker's answer
            self._silence.end()
        if code in _UNTIMELY:
            self.untimely = turn
        if code not in PURGED:
            self._troubles.note(error)


# A burst is the checks of 0.1 s, which is small compared to the queue of the sender. With less, a
# slow turn of the loop would lose checks that the rate allows.
BURST_S = 0.1
# Requests that a group has not answered, most of one worker. Half of what may wait in a member
# (`check_queue_max`, 2,000), and enough for 20,000 answers a second, each 50 ms after its request.
UNANSWERED_MAX = 1_000
# A group that is silent for this time is asked UNANSWERED_MAX more: its members may be back, and
# may not have the requests. So a group of which no member runs is asked 500 times a second. Longer
# than most checkers take, so that a slow group is asked as it answers.
SILENT_S = 2.0
# Groups that are remembered, because clients can invent groups. A group that is forgotten has room.
# Ten times as many as an installation with a hundred services has.
GROUPS_MAX = 1_000


class Pacer:
    """Allows `rate` (> 0) checks a second, in bursts of the checks of `BURST_S` (at least one)."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * BURST_S)
        self._tokens = self._burst
        self._at: float | None = None

    def allowance(self, now: float) -> int:
        """Return how many checks may be sent at `now` (monotonic seconds)."""
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return int(self._tokens)

    def spend(self, count: int) -> None:
        """Record that `count` checks were sent."""
        self._tokens -= count


@dataclass(slots=True)
class _Group:
    """A group's unanswered requests: when they were sent and how many, the oldest first."""

    asked: deque[tuple[float, int]] = field(default_factory=deque)
    count: int = 0
    heard_at: float = float("-inf")
    asked_since: float | None = None  # the first request after the last answer


class Unanswered:
    """Bounds the unanswered requests of each group, so that a group is asked as fast as it answers.

    A request counts until it is answered, or repeated after `repeated_after_s`
    (`check_interval_ms`). While a group is silent, its requests count for `SILENT_S` only. Example:
    a group answers 100 checks a second, and 10,000 fall due. It is asked 1,000 times at once, then
    100 times a second.
    """

    def __init__(self, repeated_after_s: float) -> None:
        self._repeated_after_s = repeated_after_s
        self._groups: dict[str, _Group] = {}

    def room(self, group: str, now: float) -> int:
        """Return how many requests may be sent to a group."""
        known = self._groups.get(group)
        if known is None:
            return UNANSWERED_MAX
        is_silent = now - known.heard_at >= SILENT_S
        count_s = min(SILENT_S, self._repeated_after_s) if is_silent else self._repeated_after_s
        while known.asked and now - known.asked[0][0] >= count_s:
            known.count -= known.asked.popleft()[1]
        return UNANSWERED_MAX - known.count

    def asked(self, group: str, count: int, now: float) -> None:
        """Record that `count` requests were sent to a group."""
        known = self._groups.setdefault(group, _Group())
        if len(self._groups) > GROUPS_MAX:
            del self._groups[next(iter(self._groups))]
        known.asked.append((now, count))
        known.count += count
        if known.asked_since is None:
            known.asked_since = now

    def silent_groups(self, now: float, silent_s: float) -> list[str]:
        """Return the groups that were asked `silent_s` ago and have answered nothing since."""
        return [
            group
            for group, known in self._groups.items()
            if known.asked_since is not None and now - known.asked_since >= silent_s
        ]

    def nothing_open(self, group: str) -> None:
        """Record that a group has no transaction to answer for: its silence ends."""
        self._groups[group].asked_since = None

    def answered(self, group: str, now: float) -> None:
        """Record an answer of a group; it counts for the oldest request."""
        known = self._groups.get(group)
        if known is None:
            return
        known.heard_at = now
        known.asked_since = None
        if known.asked:
            at, count = known.asked.popleft()
            if count > 1:
                known.asked.appendleft((at, count - 1))
            known.count -= 1
