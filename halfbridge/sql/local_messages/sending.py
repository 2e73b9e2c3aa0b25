"""Sends rows: batches for half partitions, their half messages, COMMITs, and the second mark.

A round has at most one batch for each half partition, so that at most one decision of a half
partition is under way. After a row is passed over, later rows of its key are passed over too. So
the rows of a key are always sent in order, without a gap.

While a batch is under way in a half partition whose leader is down or slow, and for some time after
a failure, no other batch is begun there. Batches of other half partitions continue.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import count, cycle
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.bridge.transaction import IllegalTransitionError
from halfbridge.kafka.errors import BridgeError, InvalidMessageError, TopicSetupError
from halfbridge.serde.partitioner import key_hash
from halfbridge.serde.units import MS_PER_S
from halfbridge.sql.local_messages.claims import REPEATS_MAX
from halfbridge.sql.local_messages.marks import Failure, MarkedTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from sqlalchemy import Engine

    from halfbridge.bridge.futures import DecisionFuture, SendFuture
    from halfbridge.bridge.message_transaction import Transaction
    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.marks import Marks
    from halfbridge.sql.local_messages.metrics import RelayMetrics
    from halfbridge.sql.local_messages.rows import LocalMessage


@dataclass(frozen=True, slots=True)
class Attempt:
    """A message transaction whose half messages, one for each row in order, are durable."""

    tx: Transaction
    rows: tuple[LocalMessage, ...]
    half_offset: int

    @property
    def marked(self) -> MarkedTransaction:
        """The columns that the mark writes into the rows."""
        place = self.tx.half_partition, self.half_offset
        return MarkedTransaction(self.tx.id, *place, len(self.rows))


@dataclass(slots=True)
class Sending:
    """A batch whose half messages are under way, without rows that the client refused."""

    tx: Transaction
    rows: list[LocalMessage]
    futures: list[SendFuture]
    began: float

    @property
    def half_partition(self) -> int:
        """The half partition of the batch."""
        return self.tx.half_partition

    @property
    def is_done(self) -> bool:
        """Whether every half message is acknowledged or has failed."""
        return all(future.done() for future in self.futures)

    def waits_for(self) -> list[SendFuture]:
        """Return the futures that must be done first."""
        return self.futures

    def attempt(self) -> Attempt:
        """Return the batch as an attempt.

        Raises BridgeError: a half message was not acknowledged; the relay tries again.
        """
        offsets = [future.result(0).half_offset for future in self.futures]
        return Attempt(self.tx, tuple(self.rows), max(offsets))


def send_batches(
    producer: TransactionProducer,
    batches: Iterable[Batch],
    *,
    context: bytes,
    places: Iterable[int] = (),
) -> tuple[list[Sending], list[Failure]]:
    """Send the half messages of all batches; waits only for room in the queue.

    Returns the batches under way, and the rows that the client refused. A row after a refused row
    of the same key is in neither: it is not sent, and waits. BridgeError: there is no room; the
    relay tries again. Batches without keys go to `places` in turn; empty: the client chooses.
    """
    failures: list[Failure] = []
    keys = cycle(placement_keys(producer.half_partitions)[place] for place in places)
    under_way = []
    for batch in batches:
        key = next(keys, None) if batch.half_partition is None else None
        under_way.append(_begin(producer, batch, context, failures, key))
    return [each for each in under_way if each.rows], failures


# Numbers of half partitions that are remembered: a process has one, until an operator adds some.
_LAYOUTS_MAX = 8


@lru_cache(_LAYOUTS_MAX)
def placement_keys(half_partitions: int) -> tuple[bytes, ...]:
    """Return a placement key for each half partition."""
    found: dict[int, bytes] = {}
    for number in count():
        found.setdefault(key_hash(b"%d" % number) % half_partitions, b"%d" % number)
        if len(found) == half_partitions:
            break
    return tuple(found[place] for place in range(half_partitions))


def _begin(
    producer: TransactionProducer,
    batch: Batch,
    context: bytes,
    failures: list[Failure],
    placement_key: bytes | None,
) -> Sending:
    tx = producer.begin(context=context, placement_key=placement_key)
    sending = Sending(tx, [], [], monotonic())
    passed_over: set[int] = set()
    for row in batch.messages:
        if row.key_hash in passed_over:
            continue
        try:
            future = sending.tx.send_async(row.message())
        except (InvalidMessageError, TopicSetupError, ValueError) as error:
            failures.append(Failure(row, f"{type(error).__name__}: {error}"))
            sending.tx.refused = None  # the row is left out on purpose
            if row.key_hash is not None:
                passed_over.add(row.key_hash)
        else:
            sending.rows.append(row)
            sending.futures.append(future)
    return sending


def abandon(attempts: Iterable[Attempt]) -> None:
    """Roll back message transactions whose rows are certainly not marked; does not wait."""
    for attempt in attempts:
        with suppress(BridgeError, IllegalTransitionError):  # else the check rolls it back
            attempt.tx.rollback_async()


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one message transaction, with one real topic, by id; no half partition: no keys."""

    messages: tuple[LocalMessage, ...]
    half_partition: int | None

    @property
    def topic(self) -> str:
        """The real topic."""
        return self.messages[0].topic


class _Draft:
    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages: list[LocalMessage] = []
        self._messages_left = messages_max
        self._bytes_left = bytes_max

    def takes(self, message: LocalMessage) -> bool:
        """Add the row, if there is room or it is the first one; return whether it was added."""
        if self.messages:
            first = self.messages[0]
            fits = self._messages_left > 0 and message.size_bytes <= self._bytes_left
            if message.send_alone or first.send_alone or message.topic != first.topic or not fits:
                return False
        self.messages.append(message)
        self._messages_left -= 1
        self._bytes_left -= message.size_bytes
        return True


def plan_batches(
    messages: Iterable[LocalMessage],
    *,
    half_partitions: int,
    blocked: Collection[int],
    messages_max: int,
    bytes_max: int,
) -> list[Batch]:
    """Return the batches of one round for rows with keys, at most one for a half partition.

    `messages` ascend by id, and have for each key all rows that may be sent, from its first one on.
    Nothing is sent to `blocked` half partitions. The first row of a batch may exceed `bytes_max`.
    """
    drafts: dict[int, _Draft] = {}
    passed_over: set[int] = set()
    for message in messages:
        key_hash = message.key_hash
        if key_hash is None or key_hash in passed_over:
            continue
        place = key_hash % half_partitions
        if place in blocked:
            continue
        draft = drafts.get(place)
        if draft is None:
            draft = drafts[place] = _Draft(messages_max, bytes_max)
        if not draft.takes(message):
            passed_over.add(key_hash)
    return [Batch(tuple(draft.messages), place) for place, draft in drafts.items()]


def plan_keyless(
    messages: Sequence[LocalMessage], *, messages_max: int, bytes_max: int
) -> list[Batch]:
    """Divide all rows without keys into batches, each with one topic."""
    open_drafts: dict[str, _Draft] = {}
    drafts: list[_Draft] = []
    for message in messages:
        draft = open_drafts.get(message.topic)
        if draft is None or not draft.takes(message):
            draft = open_drafts[message.topic] = _Draft(messages_max, bytes_max)
            drafts.append(draft)
            draft.takes(message)
    return [Batch(tuple(draft.messages), None) for draft in drafts]


def rotated(places: Collection[int], turn: int) -> list[int]:
    """Return half partitions in rotation, so that rounds begin with different ones."""
    start = turn % len(places)
    found = sorted(places)
    return found[start:] + found[:start]


_LOG = logging.getLogger("halfbridge.sql")
# How long a round waits for one half partition while others could continue. Acknowledgements take
# milliseconds, the election of a leader takes seconds, and a check must not come in between.
PATIENCE_S = 0.5
# How long a round waits if only late batches of earlier rounds are under way.
_LATE_SLICE_S = 0.05
# How long nothing is sent to a half partition after a failure; the time doubles.
BACK_OFF_S_MIN, BACK_OFF_S_MAX = 1.0, 30.0


class Decision(NamedTuple):
    """A COMMIT under way; `rows` are to count once it is acknowledged; 0 for a repetition."""

    transaction_id: str
    half_partition: int
    future: DecisionFuture
    rows: int
    began: float

    def waits_for(self) -> Sequence[DecisionFuture]:
        """Return the future that must be done first."""
        return (self.future,)


class _BackOff(NamedTuple):
    until: float
    pause_s: float


class InFlight:
    """Half messages and COMMITs of one relay that are under way. Not thread-safe.

    `failing` is half partition -> the last failure there, until a success there.
    """

    def __init__(
        self,
        producer: TransactionProducer,
        marks: Marks,
        metrics: RelayMetrics,
        *,
        on_step: Callable[[RelayStep], object],
    ) -> None:
        self.failing: dict[int, BridgeError] = {}
        self._producer = producer
        self._marks = marks
        self._metrics = metrics
        self._on_step = on_step
        self._sendings: list[Sending] = []
        self._decisions: list[Decision] = []
        self._acknowledged: set[str] = set()
        self._back_offs: dict[int, _BackOff] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether anything is under way."""
        return bool(self._sendings or self._decisions)

    @property
    def acknowledged(self) -> set[str]:
        """Transactions with an acknowledged COMMIT and without the second mark."""
        return set(self._acknowledged)

    def backing_off(self) -> set[int]:
        """Return the half partitions to which nothing is sent for a while after a failure."""
        now = monotonic()
        return {place for place, each in self._back_offs.items() if now < each.until}

    def closed_half_partitions(self) -> set[int]:
        """Return the half partitions in which no batch may be begun now."""
        sending = {each.half_partition for each in self._sendings}
        return sending | {each.half_partition for each in self._decisions} | self.backing_off()

    def await_sendings(self, begun: Sequence[Sending]) -> list[list[Attempt]]:
        """Wait for half messages; return the durable batches, of earlier rounds too.

        They are in groups to mark together: those of `begun`, then each late attempt alone. A check
        may have rolled back a late attempt, and only that attempt is then undone.
        """
        if not (begun or self._sendings):
            return []
        self._wait(begun, self._sendings)
        late, self._sendings = self._sendings, []
        groups = [self._durable(begun), *(self._durable([each]) for each in late)]
        return [group for group in groups if group]

    def await_now(self, begun: Sequence[Sending], *, is_patient: bool) -> list[Attempt]:
        """Wait for half messages; return the durable batches, and give up the others.

        The check rolls back batches that are given up. `is_patient`: whether to wait up to the
        limit, because no other half partition can continue.
        """
        timeout_s = self._producer.config.send_timeout_ms / MS_PER_S
        _wait_all(begun, timeout_s if is_patient else PATIENCE_S)
        return [attempt for each in begun for attempt in self._attempted(each)]

    def decide(self, attempts: Sequence[Attempt]) -> None:
        """Commit message transactions; a later round repeats a COMMIT in doubt."""
        now = monotonic()
        begun = [
            Decision(
                each.tx.id, each.tx.half_partition, each.tx.commit_async(), len(each.rows), now
            )
            for each in attempts
        ]
        self.await_decisions(begun)
        self._metrics.transactions.inc(len(begun))
        self._on_step(RelayStep.DECIDED)

    def repeat(self, found: Sequence[MarkedTransaction]) -> set[int]:
        """Repeat COMMITs of dead relays and COMMITs in doubt; return the half partitions that wait.

        A COMMIT under way, or in a half partition with a recent failure, is not repeated.
        """
        known = self._acknowledged.union(each.transaction_id for each in self._decisions)
        backing_off = self.backing_off()
        now = monotonic()
        begun = [
            Decision(
                each.transaction_id,
                each.half_partition,
                self._producer.repeat_commit(**each._asdict()),
                0,
                now,
            )
            for each in found
            if each.transaction_id not in known and each.half_partition not in backing_off
        ]
        if begun:
            self._metrics.repeats.inc(len(begun))
            self.await_decisions(begun)
        if len(found) >= REPEATS_MAX:  # there may be more, in any half partition
            return set(range(self._producer.half_partitions))
        return {
            each.half_partition for each in found if each.transaction_id not in self._acknowledged
        }

    def await_decisions(self, begun: Sequence[Decision] = ()) -> None:
        """Wait for COMMITs, of earlier rounds too, and note the acknowledged ones."""
        if not (begun or self._decisions):
            return
        self._wait(begun, self._decisions)
        left: list[Decision] = []
        timeout_s = self._producer.config.decision_timeout_ms / MS_PER_S
        for each in (*self._decisions, *begun):
            if not each.future.done() and monotonic() < each.began + timeout_s:
                left.append(each)
                continue
            try:
                each.future.result(0)
            except BridgeError as error:
                _LOG.warning("COMMIT of %s is in doubt: %s", each.transaction_id, error)
                self._failed(each.half_partition, error)
            else:
                self._acknowledged.add(each.transaction_id)
                self._metrics.rows.inc(each.rows)
                self._succeeded(each.half_partition)
        self._decisions = left

    def acknowledge(self, engine: Engine) -> None:
        """Write the missing second marks. After an error they are written later."""
        done = self.acknowledged
        if done:
            with engine.begin() as connection:
                self._marks.acknowledge(connection, done)
            self.note_written(done)

    def note_written(self, written: set[str]) -> None:
        """Note the transactions whose second mark is written."""
        if written:
            self._acknowledged -= written
            self._on_step(RelayStep.ACKNOWLEDGED)

    def _durable(self, sendings: Iterable[Sending]) -> list[Attempt]:
        """Return the durable batches; unfinished ones stay under way.

        A batch older than send_timeout_ms is rolled back: its first check is near or past.
        """
        timeout_s = self._producer.config.send_timeout_ms / MS_PER_S
        attempts: list[Attempt] = []
        for each in sendings:
            is_old = monotonic() >= each.began + timeout_s
            if each.is_done or is_old:
                durable = self._attempted(each)
                if is_old:
                    abandon(durable)
                else:
                    attempts += durable
            else:
                self._sendings.append(each)
        return attempts

    def _attempted(self, sending: Sending) -> list[Attempt]:
        try:
            attempt = sending.attempt()
        except BridgeError as error:
            self._failed(sending.half_partition, error)
            return []
        self._succeeded(sending.half_partition)
        return [attempt]

    def _wait(self, mine: Sequence[Sending | Decision], late: Sequence[Sending | Decision]) -> None:
        """Wait for `mine` up to PATIENCE_S; if there is only `late`, wait for a moment."""
        on_trial = [each for each in mine if each.half_partition in self.failing]
        prompt = [each for each in mine if each.half_partition not in self.failing]
        _wait_all(prompt, PATIENCE_S)
        if not prompt:
            _wait_all([*late, *on_trial], _LATE_SLICE_S)

    def _failed(self, place: int, error: BridgeError) -> None:
        before = self._back_offs.get(place)
        pause_s = BACK_OFF_S_MIN if before is None else min(BACK_OFF_S_MAX, 2 * before.pause_s)
        self._back_offs[place] = _BackOff(monotonic() + pause_s, pause_s)
        self.failing[place] = error

    def _succeeded(self, place: int) -> None:
        if place in self.failing:
            del self._back_offs[place], self.failing[place]


def _wait_all(begun: Iterable[Sending | Decision], seconds: float) -> None:
    deadline = monotonic() + seconds
    for each in begun:
        for future in each.waits_for():
            if not future.wait(max(0.0, deadline - monotonic())):
                return


class RelayStep(str, Enum):
    """A step of a round, for tests and tracing; a relay may die after each of them."""

    ROWS_READ = "ROWS_READ"  # rows were found
    SENT = "SENT"  # half messages are durable
    MARKED = "MARKED"  # fence rows and marks are written, but not committed
    COMMITTED = "COMMITTED"  # the database has committed the first mark
    DECIDED = "DECIDED"  # COMMITs are acknowledged
    ACKNOWLEDGED = "ACKNOWLEDGED"  # the database has committed the second mark
