"""The daemon's loop: consume what is there, plan, write one kafka_txn, again.

Batches form by themselves: while a kafka_txn commits, records pile up and the next one is
larger. Whatever fails, the answer is the same: drop the ledgers, read the committed offsets,
rebuild. DESIGN.md walks through it.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any

from halfbridge.checker.asking import Asker
from halfbridge.checker.assignment import Assignment
from halfbridge.checker.backoff import Backoff
from halfbridge.checker.barriers.kafka_io import Barriers
from halfbridge.checker.blame import Blame
from halfbridge.checker.bodies.kafka_io import BodyReader
from halfbridge.checker.collector import Collector
from halfbridge.checker.failures import InputLostError, KafkaTxnFailedError
from halfbridge.checker.inquiry.kafka_io import Questions
from halfbridge.checker.intake.kafka_io import EOF_CODE, Input
from halfbridge.checker.ledger_settings import known_limits, ledger_settings
from halfbridge.checker.outlet.turns import Turns
from halfbridge.checker.pair import restore_plan
from halfbridge.checker.publish import Publisher
from halfbridge.checker.report import Reporter
from halfbridge.checker.requests.kafka_io import CheckSender
from halfbridge.checker.routes import Routes
from halfbridge.checker.sizes import Sizes
from halfbridge.checker.stall_watch import StallWatch
from halfbridge.checker.stamps import Stamps
from halfbridge.checker.topic_watch import TopicWatch
from halfbridge.serde.records import OpKind, OpSource

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from halfbridge.checker.collector import Work
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.http import Status
    from halfbridge.checker.pair import Pair
    from halfbridge.checker.policy import Policy
    from halfbridge.checker.slots import SlotIds
    from halfbridge.serde.progress import Progress

_log = logging.getLogger("halfbridge.checker")

# How long the loop waits for records when nothing is due: bounds the reaction to a stop signal
# and to answers of brokers.
IDLE_S = 0.1
# What is overdue and waits for something else (pacer, topic, op end) is looked at again.
DUE_S = 0.01
# Nothing came for so long: the bell takes over the watch.
DOZE_S = 1.0
# A kafka_txn of so many records commits in the background, while the next batch is read; a small
# one is over sooner than a thread takes over.
BACKGROUND_RECORDS = 500
# How long the loop waits for records then, before it looks at the commit again.
UNDER_WAY_S = 0.002
# Gauges are set at this pace.
GAUGES_S = 1.0
# After a fenced producer: how long the group is given to say that another worker has the slot.
FENCED_WAIT_S = 3.0
# Failed kafka_txns in a row after which health turns red.
FAILURES_RED = 3


class Worker:
    """One worker: serves the partitions its slot is assigned, until `run`'s stop event.

    Not thread-safe: everything happens in the thread that calls `run`.
    """

    def __init__(
        self, config: CheckerConfig, policy: Policy, *, ids: SlotIds, status: Status
    ) -> None:
        self._config = config
        self._names = config.names
        self._ids = ids
        self._status = status
        self._reporter = Reporter(status.metrics)
        self._routes = Routes(config.topic_gone_ms, policy.partitioner)
        self._backoff = Backoff()
        self._stamps = Stamps()
        self._gauges_at = self._last_record_at = self._began = 0.0
        self._work: list[Work] = []
        self._progress: dict[int, Progress] = {}
        self._turns = Turns(config, ids.transactional_id_prefix, status.metrics)
        self._checks = CheckSender(config)
        self._barriers = Barriers(config, ids)
        self._bodies = BodyReader(config)
        self._input = Input(config, ids)
        questions = Questions(config)
        self._topics = TopicWatch(questions, self._routes, config, status, self._reporter)
        self._sizes = Sizes(known_limits(config, self._topics.settings.max_bytes))
        self._failed_in: set[int] = set()  # pairs whose kafka_txn failed, since one was committed
        self._blame = Blame(
            config.names, self._routes, self._sizes, questions, limit_max=config.batch_records_max
        )
        self._collector = Collector(
            config, blame=self._blame, topics=self._topics, reporter=self._reporter
        )
        self._assignment = Assignment(
            config,
            ledger_settings(config, policy, self._sizes, actor=ids.group_instance_id),
            intake=self._input,
            questions=questions,
            new_publisher=partial(Publisher, config.names, routes=self._routes, sizes=self._sizes),
            guard=self._topics.guard,
            status=status,
        )
        self._stall_watch = StallWatch(questions, self._input, self._assignment, status.metrics)
        self._asker = Asker(
            config,
            questions=questions,
            barriers=self._barriers,
            sender=self._checks,
            bodies=self._bodies,
            topics=self._topics,
            metrics=status.metrics,
        )

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set; the kafka_txn at hand is finished first.

        Raises:
            SlotTakenError: another worker took this slot over; the operator stops one of them.
        """
        try:
            while not stop.is_set():
                self._step_or_recover(stop)
        finally:
            self._close()

    def _step_or_recover(self, stop: threading.Event) -> None:
        try:
            self._step()
        except InputLostError as error:
            self._recover(str(error), stop)
        except KafkaTxnFailedError as error:
            self._after_failure(error, stop)

    # --- one turn of the loop --------------------------------------------------------------

    def _step(self) -> None:
        if not self._turns.are_ready:
            self._topics.look(monotonic())  # says sooner than a producer that nobody answers
            self._turns.start()
        dozed = self._input.dozing
        messages = self._fetch()
        now = monotonic()
        if dozed and not self._input.dozing:
            self._stay_awake(now)  # the bell rang: what it heard takes a fetch to arrive
        if self._input.changed:
            self._begin_anew(now)
            return
        if messages:
            self._last_record_at = now
            self._ingest(messages, now)
        # The end of a partition may be a marker that only the real consumer gets past.
        goes_on = self._stall_watch.look(now)
        if self._asker.take_answers(self._assignment.pairs) or goes_on:
            self._stay_awake(now)
        self._look_around(now)
        self._asker.ask(self._assignment.pairs, now)
        if self._turns.is_under_way:
            if not self._turns.is_done():
                return
            self._committed()
        self._work = self._collector.collect(self._assignment.pairs, now)
        if self._work:
            self._transact(now)

    def _begin_anew(self, now: float) -> None:
        if self._turns.settle():
            self._committed()
        if self._turns.are_ready:  # else new ones first: they fence what may still commit offsets
            self._input.changed = False
            self._topics.look(now)
            self._assignment.start()

    def _fetch(self) -> list[Any]:
        """Return records; while a commit is under way, only as many as the next batch takes."""
        if not self._turns.is_under_way:
            return self._input.fetch(self._wait_s())
        if not self._assignment.is_far_ahead:
            return self._input.fetch(UNDER_WAY_S)
        if self._turns.is_done(UNDER_WAY_S):
            self._committed()
        return []

    def _wait_s(self) -> float:
        now = monotonic()
        wait_s = max(0.0, min(IDLE_S, self._topics.look_at - now))
        for pair in self._assignment.pairs.values():
            if pair.has_work and pair.held is None:
                return 0
            if pair.ledger.waits_for_half:
                wait_s = min(wait_s, DUE_S)  # the proof that it waits in vain comes with no record
            due_ms = pair.ledger.next_due_ms()
            if due_ms is not None:
                until_s = (due_ms - pair.now_ms(now)) / 1000
                # What is overdue waits for something else: the pacer, a topic, the op end.
                wait_s = min(wait_s, until_s if until_s > 0 else DUE_S)
        return wait_s

    def _ingest(self, messages: list[Any], now: float) -> None:
        half_topic, pairs = self._names.half, self._assignment.pairs
        answers: Counter[tuple[str, OpKind]] = Counter()
        for message in messages:
            pair = pairs.get(message.partition())
            if pair is None or message.topic() is None:  # of the group: `Input` has noted it
                continue
            error = message.error()
            if error is not None:
                self._not_a_record(pair, message, error)
            elif message.topic() == half_topic:
                pair.take_half(message, now)
            else:
                op = pair.take_op(message, now)
                if op is not None and op.source is OpSource.CHECK:
                    answers[op.producer_group, op.kind] += 1
        if answers:
            self._reporter.answered(answers)
        self._assignment.pause_or_resume()

    def _not_a_record(self, pair: Pair, message: Any, error: Any) -> None:
        if error.code() != EOF_CODE:
            raise self._assignment.lost({pair.partition: message.topic()}, error.str())
        pair.take_end(message, is_half=message.topic() == self._names.half)

    def _look_around(self, now: float) -> None:
        """Do what is due in each turn, and now and then."""
        self._assignment.keep_bodies({pair.partition for pair, _ in self._work})
        self._assignment.announce(now)
        self._assignment.look_again(now)
        self._topics.look_now_and_then(now)
        if self._assignment.is_rebuilt and self._failed_in.isdisjoint(self._assignment.pairs):
            self._recovered()
        if now - self._gauges_at >= GAUGES_S:
            self._gauges_at = now
            self._sizes.refresh(int(now * 1000))
            self._tell_troubles(now)
            self._reporter.state(self._assignment.pairs.values(), now, self._topics.retention_ms)
            self._assignment.pause_or_resume()
        if now - self._last_record_at >= DOZE_S and not self._input.dozing:
            self._assignment.doze()

    def _stay_awake(self, now: float) -> None:
        self._last_record_at = now
        self._input.wake()

    def _tell_troubles(self, now: float) -> None:
        missing = f"{self._names.dead} is missing: `halfbridge topics create` makes it"
        self._status.set_ill("dead letters", missing if self._topics.lacks_dead else "")
        self._status.set_ill("group", self._input.group_trouble.text(now))
        self._status.set_ill("memory", self._assignment.memory_trouble())
        self._status.set_ill("barriers", self._barriers.trouble(now))

    # --- kafka_txns ------------------------------------------------------------------------

    def _transact(self, now: float) -> None:
        self._began = now
        for pair, plan in self._work:
            restore_plan(plan, partial(self._bodies.read, pair.partition))
        records = chain.from_iterable(
            pair.publisher.records(plan, self._stamps.ms(pair.now_ms(now), pair.latest_ms))
            for pair, plan in self._work
        )
        in_background = sum(plan.records for _, plan in self._work) >= BACKGROUND_RECORDS
        self._turns.run(
            self._blame.watched(records),
            self._offsets,
            self._input.group_metadata,
            in_background=in_background,
        )
        if not in_background:
            self._committed()

    def _offsets(self, copies_end: Mapping[int, int]) -> list[tuple[str, int, int, str]]:
        """Return the offsets that go with the work at hand, and keep them for `_committed`."""
        half, op = self._names.half, self._names.op
        positions = []
        for pair, _ in self._work:
            number = pair.partition
            mine = pair.ledger.progress(copies_end.get(number, 0))
            self._progress[number] = mine
            positions.append((half, number, mine.half, ""))
            positions.append((op, number, mine.op, mine.metadata()))
        return positions

    def _committed(self) -> None:
        """Take that the work at hand stands."""
        done = monotonic()
        for pair, plan in self._work:
            pair.held = None
            pair.committed, pair.committed_at = self._progress[pair.partition], done
            pair.ledger.committed(pair.committed)
            self._assignment.pause_or_resume(pair)
            publisher = pair.publisher
            self._reporter.written(
                plan, pair, refused=publisher.undeliverable, stubs=publisher.stubs
            )
        self._blame.succeeded({pair.partition: plan for pair, plan in self._work})
        self._work = []
        self._status.metrics.kafka_txn_s(done - self._began)
        self._failed_in.clear()
        self._recovered()

    # --- start, failure, end ---------------------------------------------------------------

    def _recovered(self) -> None:
        if self._backoff.failures:
            self._backoff.reset()
            self._status.set_ill("work", "")

    def _after_failure(self, error: KafkaTxnFailedError, stop: threading.Event) -> None:
        self._failed_in.update(pair.partition for pair, _ in self._work)
        self._status.metrics.kafka_txn_failed()
        self._topics.forget()  # perhaps one is not what it was
        if error.untimely:
            self._stamps.refused(self._stamps.turn)
        elif error.permanent:
            with suppress(InputLostError):  # nobody says what rights there are: the next time
                plans = {pair.partition: plan for pair, plan in self._work}
                self._blame.failed(error, plans, int(monotonic() * 1000))
            self._turns.batch = self._blame.batch
        if error.fenced:
            self._wait_for_verdict()
        # Even after an abort: requests that timed out here may still reach the broker, and with
        # the same epoch they would count for the next kafka_txn (KAFKA-17754); a new one fences.
        self._turns.discard()
        self._recover(f"kafka_txn failed: {error}", stop)

    def _wait_for_verdict(self) -> None:
        """Tell a slot taken over (which ends this worker) from a kafka_txn that timed out."""
        deadline = monotonic() + FENCED_WAIT_S
        with suppress(InputLostError):  # records do not matter now: all are read again
            while monotonic() < deadline:
                self._input.fetch(IDLE_S)

    def _recover(self, why: str, stop: threading.Event) -> None:
        delay_s = self._backoff.failed()
        _log.warning("%s; reading again from the committed offsets in %.1f s", why, delay_s)
        if self._backoff.failures >= FAILURES_RED:
            self._status.set_ill("work", why)
        self._turns.settle()
        self._assignment.drop()
        self._work = []
        stop.wait(delay_s)
        self._input.changed = True

    def _close(self) -> None:
        self._turns.close()
        self._checks.close()
        self._barriers.close()
        self._input.close(leave=self._config.leave)
        self._bodies.close()
