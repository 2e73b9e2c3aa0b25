"""The daemon's loop: consume records, take plans, write one kafka_txn, repeat.

While a kafka_txn commits, records accumulate for the next one. Every failure is handled in the same
way: drop the ledgers, read the committed offsets, rebuild. DESIGN.md describes the steps.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.checker.loop.asking import Asker, CheckSender
from halfbridge.checker.loop.assignment import Assignment, known_limits, ledger_settings
from halfbridge.checker.loop.barriers import Barriers
from halfbridge.checker.loop.blame import Blame
from halfbridge.checker.loop.clients import QUESTION_S, Questions
from halfbridge.checker.loop.collector import Batch, Collector, KafkaTxns
from halfbridge.checker.loop.failures import FailureCount, InputLostError, KafkaTxnFailedError
from halfbridge.checker.loop.intake import Input
from halfbridge.checker.loop.outlet import STALL_S, TRY_S
from halfbridge.checker.loop.pair import BodyReader
from halfbridge.checker.loop.producers import TransactionalProducers
from halfbridge.checker.loop.publish import Publisher, Sizes, TimestampSource
from halfbridge.checker.loop.report import HealthReport, Reporter, is_traced, trace_ops
from halfbridge.checker.loop.routes import TOOK_NOTHING, Routes
from halfbridge.checker.loop.topic_watch import TopicWatch
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code
from halfbridge.kafka.signatures import NO_SIGNATURES
from halfbridge.kafka.stalls import POLL_S, STALLED_S, compare
from halfbridge.serde.records import OpSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.clients import SlotIds
    from halfbridge.checker.loop.intake import FirstReads
    from halfbridge.checker.loop.pair import Pair
    from halfbridge.checker.loop.tracing import WorkerTracing
    from halfbridge.checker.metrics import Metrics
    from halfbridge.checker.policy import Policy
    from halfbridge.checker.status import Status
    from halfbridge.kafka.ends import Ends
    from halfbridge.kafka.errors import KafkaFailure
    from halfbridge.kafka.ports import Clock, Event, Ports, TopicPartition
    from halfbridge.kafka.signatures import Signatures
    from halfbridge.kafka.stalls import LaggingPartition
    from halfbridge.serde.records import Op

# How long the loop waits for records during a commit, before it checks the commit again. A commit
# takes some milliseconds: longer delays the next batch, shorter takes its thread's processor time.
UNDER_WAY_S = 0.002
# Interval of gauges and health, far below that of scrapers (10 s or more). Each refresh walks all
# pairs, so a shorter one takes time from the loop.
GAUGES_S = 1.0
# After a producer was fenced: how long to wait for the group to report another worker on the slot.
# Three heartbeats of 1 s. Shorter may fence the other worker in turn, longer delays the recovery
# where no other worker is the reason.
FENCED_WAIT_S = 3.0


class Worker:
    """Serves the partitions assigned to a slot. One thread calls `run`, or `turn` and `close`."""

    def __init__(
        self,
        config: CheckerConfig,
        policy: Policy,
        *,
        ids: SlotIds,
        status: Status,
        ports: Ports,
        signatures: Signatures = NO_SIGNATURES,
        first_reads: FirstReads | None = None,
        tracing: WorkerTracing | None = None,
    ) -> None:
        self._monotonic = ports.clock.monotonic
        self._config = config
        self._names = config.names
        self._ids = ids
        self._status = status
        status.set_delivery(config.delivery)
        self._reporter = Reporter(status.metrics, ports.clock, tracing)
        self._routes = Routes(config.topic_gone_ms, policy.partitioner)
        self._failures = FailureCount(status)
        self._timestamps = TimestampSource()
        self._gauges_at = 0.0
        self._batch = Batch()
        self._producers = TransactionalProducers(
            config, ids.transactional_id_prefix, status.metrics, ports=ports
        )
        self._checks = CheckSender(
            config, ports, partial(status.metrics.clients_replaced, {"checks": 1})
        )
        self._barriers = Barriers(config, ids, ports, status.metrics.spare_id_taken)
        self._bodies = BodyReader(config, ports)
        self._input = Input(
            config, ids, ports, partial(status.metrics.clients_replaced, {"consumer": 1})
        )
        questions = Questions(config, ports, partial(status.metrics.clients_replaced, {"admin": 1}))
        self._topics = TopicWatch(questions, self._routes, config, status, clock=ports.clock)
        self._sizes = Sizes(known_limits(config, self._topics.settings.max_bytes))
        self._blame = Blame(
            config.names, self._routes, self._sizes, questions, limit_max=config.batch_records_max
        )
        self._kafka_txns = self._new_kafka_txns()
        self._collector = Collector(
            config, blame=self._blame, topics=self._topics, reporter=self._reporter
        )
        self._first_reads = first_reads
        self._assignment = self._new_assignment(policy, questions, ports.clock, signatures)
        self._stall_watch = StallWatch(questions, self._input, self._assignment, status.metrics)
        self._asker = Asker(
            config,
            questions=questions,
            barriers=self._barriers,
            sender=self._checks,
            bodies=self._bodies,
            topics=self._topics,
            metrics=status.metrics,
            tracing=tracing,
        )
        self._health = HealthReport(
            config,
            status,
            topics=self._topics,
            routes=self._routes,
            intake=self._input,
            reporter=self._reporter,
        )

    def _new_kafka_txns(self) -> KafkaTxns:
        return KafkaTxns(
            self._names,
            self._producers,
            intake=self._input,
            blame=self._blame,
            bodies=self._bodies,
            timestamps=self._timestamps,
            reporter=self._reporter,
            metrics=self._status.metrics,
        )

    def _new_assignment(
        self, policy: Policy, questions: Questions, clock: Clock, signatures: Signatures
    ) -> Assignment:
        config, sizes, signer = self._config, self._sizes, signatures.signer
        actor = self._ids.group_instance_id
        return Assignment(
            config,
            ledger_settings(config, policy, sizes, actor=actor, signs=signer is not None),
            intake=self._input,
            questions=questions,
            new_publisher=partial(
                Publisher, config.names, routes=self._routes, sizes=sizes, signer=signer
            ),
            guard=self._topics.guard,
            away=self._topics.away,
            status=self._status,
            clock=clock,
            verifier=signatures.verifier,
            first_reads=self._first_reads,
        )

    def run(self, stop: Event) -> None:
        """Serve until `stop`, and finish the kafka_txn.

        SlotTakenError: stop one of the two workers.
        """
        try:
            while not stop.is_set():
                self.turn(stop)
        finally:
            self.close()

    def turn(self, stop: Event) -> None:
        """Take one turn of the loop, and recover from its failures; raises as `run`."""
        try:
            self._step()
        except InputLostError as error:
            self._recover(str(error), stop)
        except KafkaTxnFailedError as error:
            self._after_failure(error, stop)

    # --- one turn of the loop --------------------------------------------------------------

    def _step(self) -> None:
        if not self._producers.are_ready:
            # This finds out sooner than a producer that brokers are down.
            self._topics.refresh(self._monotonic())
            self._producers.start(self._blame.send_size)
        messages = self._fetch()
        now = self._monotonic()
        if self._input.changed:
            self._restart(now)
            return
        if messages:
            self._ingest(messages, now)
        self._stall_watch.poll(now)
        self._asker.handle_answers(self._assignment.pairs, now)
        self._housekeeping(now)
        self._asker.ask(self._assignment.pairs, now)
        if self._producers.is_under_way:
            if not self._producers.is_done():
                return
            self._committed()
        self._batch = self._collector.collect(self._assignment.pairs, now)
        if self._batch.pairs:
            self._transact(now)

    def _restart(self, now: float) -> None:
        if self._producers.settle():
            self._committed()
        # Without producers, `_step` makes them first: they fence a late commit of offsets.
        if self._producers.are_ready:
            self._input.changed = False
            self._topics.refresh(now)
            self._assignment.start()

    def _fetch(self) -> list[Any]:
        """Return records; while a commit is under way, no more than the next batches take."""
        if not self._producers.is_under_way:
            pairs = self._assignment.pairs.values()
            return self._input.fetch(idle_s(pairs, self._monotonic(), self._topics.refresh_at))
        if not self._assignment.is_far_ahead:
            return self._input.fetch(UNDER_WAY_S)
        if self._producers.is_done(UNDER_WAY_S):
            self._committed()
        return []

    def _ingest(self, messages: list[Any], now: float) -> None:
        taken = distribute(messages, self._assignment.pairs, self._names.half, now)
        if taken.answers:
            self._reporter.answered(taken.answers, now)
            self._asker.answered(taken.answers, now)
        if is_traced():
            trace_ops(messages, self._names.op)
        if taken.failure is not None:
            raise self._assignment.lost(taken.failed, taken.failure.text)
        with_news = self._assignment.with_news
        for pair in with_news:
            self._topics.expect(pair.topics_read, now)
            pair.topics_read.clear()
        self._assignment.pause_or_resume(*with_news)

    def _housekeeping(self, now: float) -> None:
        """Do the work of each turn, and the periodic work that is due."""
        self._assignment.keep_bodies({pair.partition for pair in self._batch.pairs})
        self._assignment.announce(now)
        self._assignment.poll_waiting(now)
        self._topics.refresh_if_due(now)
        if self._assignment.is_rebuilt:
            self._failures.rebuilt(self._assignment.pairs)
        if now - self._gauges_at >= GAUGES_S:
            self._gauges_at = now
            self._sizes.refresh(int(now * 1000))
            barriers_problem = self._barriers.trouble(now)
            self._health.refresh(now, self._assignment, barriers_problem=barriers_problem)
            self._reporter.state(self._assignment.pairs.values(), now, self._topics.retention_ms)
            self._assignment.pause_or_resume()

    # --- kafka_txns ------------------------------------------------------------------------

    def _transact(self, now: float) -> None:
        stall_s = TRY_S if self._topics.is_trying(now) else STALL_S
        self._batch = self._kafka_txns.write(self._batch, now, stall_s)
        if not self._producers.is_under_way:
            self._committed()

    def _committed(self) -> None:
        batch, plans, self._batch = self._batch, self._batch.plans, Batch()
        self._kafka_txns.committed(batch, self._monotonic())
        for pair in batch.pairs:
            self._assignment.pause_or_resume(pair)
        self._blame.succeeded(plans)
        self._failures.committed()

    # --- start, failure, end ---------------------------------------------------------------

    def _after_failure(self, error: KafkaTxnFailedError, stop: Event) -> None:
        self._failures.kafka_txn_failed(pair.partition for pair in self._batch.pairs)
        self._status.metrics.kafka_txn_failed()
        self._topics.forget()  # a topic may have changed
        if error.untimely:
            self._timestamps.refused(self._timestamps.turn)
        for place in error.places:
            self._routes.blame(place, TOOK_NOTHING, int(self._monotonic() * 1000))
        if error.permanent:
            # No broker answers about rights now: the next failure asks again.
            with suppress(InputLostError):
                self._blame.failed(error, self._batch.plans, int(self._monotonic() * 1000))
        if error.fenced:
            self._wait_for_verdict()
        # Even after an abort, requests that timed out may still reach the broker, and apply to the
        # next kafka_txn if its epoch is the same (KAFKA-17754); a new producer fences them.
        self._producers.discard()
        self._recover(f"kafka_txn failed: {error}", stop)

    def _wait_for_verdict(self) -> None:
        """Wait for the group to report that another worker has the slot, which ends this one."""
        deadline = self._monotonic() + FENCED_WAIT_S
        with suppress(InputLostError):  # the records do not matter: all are read again
            while self._monotonic() < deadline:
                self._input.fetch(IDLE_S)

    def _recover(self, why: str, stop: Event) -> None:
        delay_s = self._failures.failed(why)
        self._producers.settle()
        self._assignment.drop()
        self._batch = Batch()
        stop.wait(delay_s)
        self._input.changed = True

    def close(self) -> None:
        """Finish the present kafka_txn and close everything; no turn may follow."""
        self._producers.close()
        self._checks.close()
        self._barriers.close()
        self._input.close(leave=self._config.leave)
        self._bodies.close()


# How long the loop waits for records when nothing is due. Bounds the delay of a stop signal and of
# brokers' answers; ten turns a second cost an idle worker next to nothing.
IDLE_S = 0.1
# The wait while something overdue waits for the pacer, a topic or the op end. Longer delays its
# check or delivery, shorter costs more than a hundred turns a second.
DUE_S = 0.01


def idle_s(pairs: Iterable[Pair], now: float, refresh_at: float) -> float:
    """Return how long to wait, seconds: 0 if a pair has work, at most to `refresh_at`."""
    wait_s = max(0.0, min(IDLE_S, refresh_at - now))
    for pair in pairs:
        if pair.has_work and pair.held is None:
            return 0.0
        if pair.ledger.waits_for_half:
            wait_s = min(wait_s, DUE_S)  # a proof of the half end does not come as a record
        due_ms = pair.ledger.next_due_ms()
        if due_ms is not None:
            until_s = (due_ms - pair.now_ms(now)) / 1000
            # Overdue: it waits for the pacer, a topic or the op end.
            wait_s = min(wait_s, until_s if until_s > 0 else DUE_S)
    return wait_s


# The interval while there is more to read: how late a stall is noticed beyond STALLED_S (60 s), a
# thirtieth of it. Shorter costs brokers requests, and POLL_S would add up to 20 s.
POLL_BEHIND_S = 2.0
# Twice the time in which a client reports that no broker answers. After it the question is dropped.
FORGOTTEN_S = 2 * QUESTION_S


class StallWatch:
    """Notices a consumer that fetches nothing, although logs grow. Times: monotonic seconds."""

    def __init__(
        self, questions: Questions, intake: Input, assignment: Assignment, metrics: Metrics
    ) -> None:
        self._questions = questions
        self._input = intake
        self._assignment = assignment
        self._metrics = metrics
        self._asked_at = -POLL_S
        self._question: Ends | None = None
        self._behind: dict[TopicPartition, LaggingPartition] = {}

    def poll(self, now: float) -> None:
        """Compare the positions with the ends of logs; never waits.

        Raises:
            InputLostError: a log went on for STALLED_S, and none of its records came. A new
                consumer replaces the old one. A pair that stalls again is left out for a while.
        """
        if self._question is None:
            pause_s = POLL_BEHIND_S if self._behind else POLL_S
            if now - self._asked_at >= pause_s:
                self._asked_at = now
                self._question = self._questions.ask_stable_ends(self._input.reached())
        elif self._question.is_over:
            ends, self._question = self._question.answers(), None
            self._compare(ends, now)
        elif now - self._asked_at > FORGOTTEN_S:
            self._question, self._behind = None, {}

    def _compare(self, ends: Mapping[TopicPartition, int], now: float) -> None:
        self._behind = compare(self._behind, self._input.reached(), ends, now)
        read_since = self._input.reading.since(now)
        stand = {place: max(each.since, read_since) for place, each in self._behind.items()}
        if stalled := {place: since for place, since in stand.items() if now - since >= STALLED_S}:
            self._give_up(stalled)

    def _give_up(self, stalled: Mapping[TopicPartition, float]) -> None:
        """Replace the consumer; `stalled` says since when each place has stood still."""
        self._behind = {}
        self._metrics.consumer_stalled()
        pairs = self._assignment.pairs
        # If both topics of a pair stalled, the one that was never read to its end comes last, so
        # that its entry is kept.
        places = sorted(stalled, key=lambda place: place[0] not in pairs[place[1]].read_to_end)
        unread = {number: topic for topic, number in places}
        why = f"no record was received for {STALLED_S:g} s, although the log has more"
        self._input.renew(str(self._assignment.lost(unread, why, since=max(stalled.values()))))


class Fetched(NamedTuple):
    """The result of taking the records of one fetch.

    Attributes:
        answers: Answers to checks, and failed attempts.
        failure: Why a partition cannot be read; later records were not taken.
        failed: The partition of `failure` -> its topic.
    """

    answers: list[Op]
    failure: KafkaFailure | None
    failed: dict[int, str]


def distribute(
    messages: Iterable[Any], pairs: Mapping[int, Pair], half_topic: str, now: float
) -> Fetched:
    """Hand each record to its pair in order, up to a failure; leave out pairs not served."""
    answers: list[Op] = []
    for message in messages:
        pair, topic = pairs.get(message.partition()), message.topic()
        if pair is None or topic is None:  # errors of the group: see `Input`
            continue
        error = message.error()
        if error is not None:
            failure = failure_of(error)
            if failure.code != Code.PARTITION_EOF:
                return Fetched(answers, failure, {pair.partition: topic})
            pair.add_end(message, is_half=topic == half_topic)
        elif topic == half_topic:
            pair.add_half(message, now)
        else:
            op = pair.add_op(message, now)
            if op is not None and op.source is OpSource.CHECK:
                answers.append(op)
    return Fetched(answers, None, {})
