"""Sends checks to producer groups, and asks brokers where partitions end."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING
from zlib import crc32

from halfbridge.checker.loop.batch_writer import STALL_S, TRY_S
from halfbridge.checker.loop.pacer import Pacer, Unanswered
from halfbridge.checker.loop.pair import in_turn
from halfbridge.checker.loop.plan_bodies import restore_checks
from halfbridge.checker.loop.report import TellNow
from halfbridge.checker.loop.stamps import Stamps
from halfbridge.checker.loop.tracing import is_traced, trace_check
from halfbridge.logs import about
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.plan import Check
    from halfbridge.checker.loop.barriers import Barriers
    from halfbridge.checker.loop.bodies import BodyReader
    from halfbridge.checker.loop.check_sender import CheckSender
    from halfbridge.checker.loop.pair import Pair
    from halfbridge.checker.loop.questions import Questions
    from halfbridge.checker.loop.topic_watch import TopicWatch
    from halfbridge.checker.metrics import Metrics
    from halfbridge.serde.records import Op

_log = logging.getLogger("halfbridge.checker")

# Bodies that are read again for one part of the checks. Without parts, a tenth of a second's checks
# may be 200 messages of a megabyte each.
PART_BYTES = 4_194_304
# A group that was asked so long ago and has answered nothing is reported: every member was asked
# several times (`check_interval_ms` is 6 s, and repetitions go to other partitions).
NOBODY_S = 60.0
# How often silent groups are looked for, and how many undecided transactions one look counts at
# most: some 10 ms of work.
NOBODY_LOOK_S = 30.0
NOBODY_COUNT_MAX = 10_000


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
    ) -> None:
        self._names = config.names
        self._pacer = Pacer(config.check_rate_max)
        self._unanswered = Unanswered(config.check_interval_ms / MS_PER_S)
        self._questions = questions
        self._barriers = barriers
        self._sender = sender
        self._bodies = bodies
        self._topics = topics
        self._metrics = metrics
        self._stamps = Stamps()
        self._last = -1  # the pair that asked last
        self._told = TellNow()
        self._told_silent = TellNow()
        self._silent_look_at = 0.0

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
            self._stamps.refused(self._sender.untimely)
        if now >= self._silent_look_at:
            self._silent_look_at = now + NOBODY_LOOK_S
            self._report_silent(pairs, now)

    def answered(self, answers: Iterable[Op], now: float) -> None:
        """Record answers of producer groups, which may be asked so much more."""
        for op in answers:
            self._unanswered.answered(op.producer_group, now)

    def take_answers(self, pairs: Mapping[int, Pair], now: float) -> None:
        """Hand the brokers' answers to the ledgers."""
        for answer in self._questions.answers():
            pair = pairs.get(answer.partition)
            if pair is not None:
                pair.op_end(answer.end, answer.token)
        for proof in self._barriers.answers():
            pair = pairs.get(proof.partition)
            if pair is not None:
                pair.half_end(proof.end, proof.token)
        for number, is_clear in self._barriers.take_silent().items():
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
                    timestamp_ms=self._stamps.ms(record.timestamp_ms, pair.latest_ms),
                )
                is_sent = self._sender.send(record, self._stamps.turn)
                sent[check.half.metadata.producer_group] += is_sent
                if are_traced and is_sent:
                    trace_check(check, pair.partition, topic=record.topic)
            else:
                self._nobody_to_ask(check.half.metadata.producer_group, record.topic, now)
        for group, count in sent.items():
            if count:
                self._unanswered.asked(group, count, now)
        self._metrics.checks_sent(sent)

    def _report_silent(self, pairs: Mapping[int, Pair], now: float) -> None:
        """Log now and then which groups answer nothing, and what an operator has to do."""
        silent = self._unanswered.silent_groups(now, NOBODY_S)
        if not silent:
            return
        ages: dict[str, list[float]] = {group: [] for group in silent}
        counted = list(islice(_asked(pairs, now), NOBODY_COUNT_MAX))
        for group, age_s in counted:
            if group in ages:
                ages[group].append(age_s)
        is_all = len(counted) < NOBODY_COUNT_MAX
        for group, of_group in ages.items():
            if not of_group:
                if is_all:
                    self._unanswered.nothing_open(group)
            elif self._told_silent.is_due(group, now):
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
        if not self._told.is_due(topic, now):
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
    """Return the partition of the check topic for this request.

    Each repetition goes to another partition, so that another member is asked: one member may not
    answer, or may not know the topic.
    """
    return (crc32(check.half.metadata.transaction_id.encode()) + check.attempt) % partitions
