"""One message transaction: begin, send, decide, and its state by the acknowledgements.

The flow: `_send` checks a message, places the transaction by its first message in a half partition,
and produces the half record. The Kafka client calls the record's future, and this `half_settled`:
with the last acknowledgement the state is HALF_SENT, and the local transaction may run. `_decide`
produces the op record, COMMIT or ROLLBACK, to the same partition number of the op topic;
`decision_settled` ends in COMMITTED or ROLLED_BACK, or in doubt, and then a check settles it. Each
step of the state goes through the table of bridge/transaction.py, under the lock; each record is
produced after its step, without the lock. `__exit__` only chooses which decision a block makes.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from halfbridge.bridge.futures import DecisionFuture, SendFuture
from halfbridge.bridge.message import Resolution, check_whole_number, checked_context
from halfbridge.bridge.transaction import Event, IllegalTransitionError, State, step
from halfbridge.bridge.transaction_records import encoded_decision, half_headers
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import (
    BridgeError,
    HalfNotStoredError,
    InvalidMessageError,
    RetriableError,
    again,
    bridge_error,
)
from halfbridge.logs import about
from halfbridge.serde.avro import FENCE_CONTEXT
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import DEFAULT_IMMUNITY, NO_OFFSET, NO_TIMESTAMP, OpKind
from halfbridge.serde.units import MIB, MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from halfbridge.bridge.message import Message, SendReceipt
    from halfbridge.bridge.shared import Shared
    from halfbridge.kafka.ports import ClientError

    # Topic, key and value of a message. Headers may differ when a send is repeated: a trace's do.
    _Body: TypeAlias = tuple[str, bytes | None, bytes | None]

_LOG = logging.getLogger("halfbridge.bridge")
_NOTHING_TO_COMMIT = frozenset(
    (State.INIT, State.ROLLBACK_SENT, State.ROLLBACK_IN_DOUBT, State.ROLLED_BACK)
)
_STORED = frozenset((State.HALF_SENT, State.SEALED))
_SENDS_ENDED = "the local transaction commits now, with the number of messages; send before that"
_DECIDED = "a block of a decided transaction would do nothing; begin another"
_UNDECIDED = frozenset((State.HALF_SENDING, State.HALF_SENT, State.SEALED, State.SEND_FAILED))
_RESOLUTIONS = {Event.COMMIT: Resolution.COMMIT, Event.ROLLBACK: Resolution.ROLLBACK}
_MADE = {State.COMMITTED: Resolution.COMMIT, State.ROLLED_BACK: Resolution.ROLLBACK}
_KINDS = {Event.COMMIT: OpKind.COMMIT, Event.ROLLBACK: OpKind.ROLLBACK}
# Why a transaction with a fence's context cannot commit yet.
_FENCE_FIRST = (
    "its fence row is not committed: call fence.enter() in the local transaction, and commit the"
    " database first. A check would roll the messages back otherwise"
)


class Transaction:
    """One message transaction. Thread-safe; made by `TransactionProducer.begin`.

    It takes at most 1,000 messages, and 8 MiB of their keys, values and headers (serde/limits.py).
    They are delivered all, in the order of the sends, or none.

    As a context manager: leaving normally commits if anything was sent and nothing was decided.
    Leaving by an exception (BaseException too) decides nothing, because the local transaction may
    have committed although its call raised; the check decides, unless `rollback` was called or
    `begin(rollback_on=...)` names the exception. All sends precede the local transaction, except in
    the block of a fence, and have returned (or their futures are done) before `commit`. Code that
    holds the lock never waits and calls no port.

    Attributes:
        id: Transaction id. Store it with the local transaction, so that a checker can look it up.
        commit_held: Why COMMIT is refused for now; empty: COMMIT is not refused. Set by code that
            commits the local transaction first.
        refused: Why a send was refused before anything was stored, or None. None again once each
            refused send is repeated, with the same topic, key and value. A caller that leaves a
            message out on purpose sets this to None; otherwise a fence refuses the transaction.

    Source: RocketMQ 5 Transaction; differs: D-002 and D-004 (DESIGN.md).
    """

    __slots__ = (
        "_bytes",
        "_context",
        "_count",
        "_decided",
        "_decision",
        "_first_timestamp",
        "_has_ended_sends",
        "_immunity_ms",
        "_immunity_on_wire",
        "_in_doubt",
        "_last_offset",
        "_lock",
        "_outstanding",
        "_placement_key",
        "_rollback_on",
        "_sends",
        "_sent_at_s",
        "_state",
        "_unsent",
        "commit_held",
        "half_partition",
        "id",
        "refused",
        "shared",
    )

    def __init__(
        self,
        shared: Shared,
        *,
        immunity_ms: int | None = None,
        context: bytes | None = None,
        rollback_on: tuple[type[BaseException], ...] = (),
        placement_key: bytes | None = None,
    ) -> None:
        self.shared = shared
        self._rollback_on = rollback_on
        self._placement_key = placement_key
        self._context = checked_context(context)
        # Without the fence row a check would roll back what the database has committed.
        self.commit_held = _FENCE_FIRST if _is_fenced(self._context) else ""
        self._immunity_on_wire = DEFAULT_IMMUNITY if immunity_ms is None else immunity_ms
        self.id = shared.new_id()
        self.half_partition = -1
        self.refused: Exception | None = None
        self._lock = Lock()
        self._state = State.INIT
        self._count = 0
        self._bytes = 0
        self._outstanding = 0
        self._last_offset = NO_OFFSET
        self._first_timestamp = NO_TIMESTAMP
        self._immunity_ms = 0
        self._decision: DecisionFuture | None = None  # sent, not acknowledged
        self._decided: tuple[int, int] | None = None  # op offset and append time, once acked
        self._in_doubt: DecisionFuture | None = None  # the newest decision, if it has failed
        self._sends: list[SendFuture] = []
        self._unsent: frozenset[_Body] = frozenset()  # of sends that are to be repeated
        self._sent_at_s = 0.0  # of the last send, by the monotonic clock
        self._has_ended_sends = False

    @classmethod
    def sent_by_another(
        cls,
        shared: Shared,
        *,
        transaction_id: str,
        half_partition: int,
        half_offset: int,
        message_count: int,
    ) -> Transaction:
        """Return a transaction that another process sent; it can only be committed, repeatedly.

        Used where it is not known whether COMMIT was sent. The producer of `shared` has the same
        group. `half_offset` is at or above the last half message, and below the end of the half
        partition.

        Raises:
            InvalidMessageError: a number that no transaction can have; the caller corrects it.
        """
        for field, value, least, most in (
            ("half_partition", half_partition, 0, shared.partitions - 1),
            ("half_offset", half_offset, 0, None),
            ("message_count", message_count, 1, TRANSACTION_MESSAGES_MAX),
        ):
            check_whole_number(field, value)
            if value < least or (most is not None and value > most):
                raise InvalidMessageError(f"{field} {value} is of no transaction", field=field)
        transaction = cls(shared)
        transaction.id = transaction_id
        transaction.half_partition = half_partition
        transaction._state = State.COMMIT_IN_DOUBT
        transaction._count = message_count
        transaction._last_offset = half_offset
        return transaction

    @property
    def state(self) -> State:
        """The state of the transaction; see bridge/transaction.py."""
        return self._state

    @property
    def message_count(self) -> int:
        """How many messages were sent so far, acknowledged or not."""
        return self._count

    @property
    def stored_count(self) -> int:
        """How many messages were sent if all of them are acknowledged, and none failed; else 0."""
        with self._lock:
            return self._count if self._state in _STORED else 0

    @property
    def decision(self) -> DecisionFuture | None:
        """The future of the newest decision; None before the first one."""
        with self._lock:
            if self._decided is not None:
                return self._acknowledged(_MADE[self._state], self._decided)
            return self._decision or self._in_doubt

    def send(self, message: Message, timeout: float | None = None) -> SendReceipt:
        """Store a half message durably and return its position. Blocks.

        `timeout` is in seconds, for the ack; None: the config's send_timeout_ms.

        Raises:
            InvalidMessageError, TopicSetupError: nothing was sent; correct the message or topic.
            HalfNotStoredError: no ack; do not run the local transaction; only rollback is allowed
                now.
            TransactionsRejectedError: an operator stopped new transactions; repeat the call later.
            IllegalTransitionError: after a decision or a failed send; correct the caller.
            ProducerClosedError, ForkedProcessError: the producer is closed, or was made before a
                fork; make another.
        """
        return self._send(message, pipelined=False).result(timeout)

    def send_async(self, message: Message) -> SendFuture:
        """Send a half message and return at once, the pipelined form of `send`.

        May block for room (`in_flight_max`). Run the local transaction once the future has a
        result. Raises what `send` raises, HalfNotStoredError from the future too, and
        BackpressureError: no room in time; nothing was sent; slow down and repeat.
        """
        return self._send(message, pipelined=True)

    def send_all(
        self, messages: Iterable[Message], timeout: float | None = None
    ) -> list[SendReceipt]:
        """Store half messages in one round trip, and return their positions in order. Blocks.

        `timeout` is in seconds, for all acks; None: the config's send_timeout_ms. Raises what
        `send_async` and `send` raise; the messages before a refused one are sent.
        """
        futures = [self.send_async(message) for message in messages]
        shared, now = self.shared, self.shared.now
        seconds = shared.config.send_timeout_ms / MS_PER_S if timeout is None else timeout
        deadline = now() + seconds
        return [future.result(max(0.0, deadline - now())) for future in futures]

    def seal(self) -> None:
        """Refuse further sends, because the local transaction begins and records `message_count`.

        Raises:
            IllegalTransitionError: nothing was sent, a send is outstanding or has failed, or a
                decision was sent; nothing changed; correct the caller.
        """
        with self._lock:
            self._state = step(self._state, Event.SEAL, transaction_id=self.id)

    def refuse_sends(self) -> None:
        """Refuse further sends, and wait for nothing: `end_sends` waits."""
        with self._lock:
            self._has_ended_sends = True

    def end_sends(self) -> int:
        """Refuse further sends, wait for those outstanding, and return the number of messages.

        For code that commits the local transaction next, and the number with it. Waits up to
        send_timeout_ms. Unlike `seal` it accepts a transaction that has sent nothing.

        Raises:
            HalfNotStoredError: a half message was not acknowledged, so only rollback is allowed
                now; do not commit the local transaction.
        """
        self.refuse_sends()
        self._await_sends(self.shared.now())
        return self.sent_count()

    def sent_count(self) -> int:
        """Return the number of messages, once no send is outstanding; raises as `end_sends`."""
        if self._state is State.SEND_FAILED:
            raise HalfNotStoredError(
                f"a half message of transaction {self.id} was not acknowledged; do not commit the"
                " local transaction; roll back",
                transaction_id=self.id,
            )
        return self._count

    def commit(self, timeout: float | None = None, *, wait: bool | None = None) -> DecisionFuture:
        """Decide COMMIT and return the future of the decision. Idempotent.

        Returns once the decision is sent, as RocketMQ's END_TRANSACTION does, or, with `wait`, once
        it is acknowledged. A check settles a decision that is lost. May block for room
        (`in_flight_max`).

        Args:
            timeout: Seconds to wait for the ack, which it implies; None: the config's
                decision_timeout_ms.
            wait: Whether to wait for the ack; None: the config's `decisions`.

        Raises:
            OutcomeUnknownError: not sent, or, with `wait`, not acknowledged: in doubt; the check
                settles it, or call commit again.
            BackpressureError: no room in time; nothing was decided; slow down and repeat.
            IllegalTransitionError: nothing sent, a send outstanding or failed, or rolled back;
                correct the caller.
            ProducerClosedError, ForkedProcessError: the producer is closed, or was made before a
                fork; the check settles it.
        """
        return self._decide_and_wait(Event.COMMIT, timeout, wait=wait)

    def commit_async(self) -> DecisionFuture:
        """Send COMMIT and return at once. Once: a repeat returns the same future.

        May block for room (`in_flight_max`). Raises what `commit` raises, OutcomeUnknownError from
        the future.
        """
        return self._decide(Event.COMMIT, pipelined=True)

    def rollback(self, timeout: float | None = None, *, wait: bool | None = None) -> DecisionFuture:
        """Decide ROLLBACK and return the future of the decision, as `commit`. Idempotent.

        Waits for outstanding sends first. Without an acknowledged one a broker is asked where the
        half partition ends, for at most decision_timeout_ms.

        Raises:
            OutcomeUnknownError: in doubt; the check settles it, or call rollback again.
            BridgeError: the broker that was asked did not answer; nothing was sent; the check
                settles it, or call rollback again.
            BackpressureError: no room in time; nothing was decided; slow down and repeat.
            IllegalTransitionError: nothing was sent, or a commit was; correct the caller.
            ProducerClosedError, ForkedProcessError: the producer is closed, or was made before a
                fork; the check settles it.
        """
        self.shared.check_open(decides=True)
        self._await_sends(self.shared.now())
        return self._decide_and_wait(Event.ROLLBACK, timeout, wait=wait)

    def rollback_async(self) -> DecisionFuture:
        """Send ROLLBACK and return at once. Once: a repeat returns the same future.

        May block for room. Without an acknowledged send a broker is asked first, for at most
        decision_timeout_ms. Raises what `rollback` raises, OutcomeUnknownError from the future.
        """
        return self._decide(Event.ROLLBACK, pipelined=True)

    def __enter__(self) -> Transaction:  # noqa: PYI034  (Self came with 3.11)
        if self._state is not State.INIT and self._state not in _UNDECIDED:
            raise IllegalTransitionError(
                self._state, Event.SEND, transaction_id=self.id, why=_DECIDED
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.ending(error):
            self._decide_at_exit(kind)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Run a block whose caller decides the transaction in it, unlike the block of `with`."""
        self.__enter__()
        with self.ending():
            yield

    def due_at_exit(self, kind: type[BaseException] | None) -> Event | None:
        """Return what leaving the block decides, normally or by an exception of class `kind`."""
        if kind is None:
            return None if self._state in _NOTHING_TO_COMMIT else Event.COMMIT
        is_proof = issubclass(kind, self._rollback_on) and self._state in _UNDECIDED
        return Event.ROLLBACK if is_proof else None

    @contextmanager
    def ending(self, error: BaseException | None = None) -> Iterator[None]:
        """Run the last steps of a block that `error` leaves, then call `end_block` once."""
        try:
            yield
        except BaseException as raised:
            self.end_block(raised)
            raise
        self.end_block(error)

    def end_block(self, error: BaseException | None) -> None:
        """End what `__enter__` began besides the transaction (`TracedTransaction`: a span).

        `error` is what leaves the block, or None.
        """

    @property
    def unacknowledged(self) -> tuple[SendFuture, ...]:
        """The sends, if one of them is outstanding; empty: none is."""
        return tuple(self._sends)

    @property
    def is_unplaced(self) -> bool:
        """Whether no send is acknowledged, so that a rollback asks a broker first, and waits."""
        return self._last_offset == NO_OFFSET

    def is_unanswered(self) -> bool:
        """Return whether a send has failed, and none was acknowledged.

        Waits for outstanding sends first, unless the caller has given up one of them already. Their
        time began with the last send: a caller that waited for room since then does not wait again.
        """
        if self._state is not State.SEND_FAILED:
            self._await_sends(self._sent_at_s)
        return self._state is State.SEND_FAILED and self._last_offset == NO_OFFSET

    def half_settled(self, future: SendFuture, error: ClientError | None) -> None:
        """Note the result of a half record (called by its future, inside `poll`)."""
        with self._lock:
            self._outstanding -= 1
            if error is None:
                self._last_offset = max(self._last_offset, future.offset)
                if not future.index:
                    self._first_timestamp = future.timestamp
                if not self._outstanding:
                    self._state = step(self._state, Event.SENDS_ACKED)
            else:
                future.fail(_error_of(error))
                self._state = step(self._state, Event.SEND_NOT_ACKED)
            if not self._outstanding:
                self._sends.clear()  # breaks the reference cycle, to spare the garbage collector
            future.settle()

    def decision_settled(self, future: DecisionFuture, error: ClientError | None) -> None:
        """Note the result of an op record (called by its future, inside `poll`)."""
        with self._lock:
            if error is None:
                self._state = step(self._state, Event.DECISION_ACKED)
                self._decided = (future.offset, future.timestamp)
            else:
                future.fail(_error_of(error))
                if self._decision is future:  # else `future` is an older one, repeated since
                    self._state = step(self._state, Event.DECISION_NOT_ACKED)
                    self._in_doubt = future
            if self._decision is future:
                self._decision = None
            future.settle()

    def give_up_send(self, future: SendFuture) -> bool:
        """Note that a caller no longer waits for an ack; False if the ack came just now."""
        with self._lock:
            if future.done():
                return False
            self._state = step(self._state, Event.SEND_NOT_ACKED)
            return True

    def give_up_decision(self, future: DecisionFuture) -> bool:
        """Note that a caller no longer waits for an ack; False if the ack came just now."""
        with self._lock:
            if future.done():
                return False
            if self._decision is future:
                self._state = step(self._state, Event.DECISION_NOT_ACKED)
                self._decision, self._in_doubt = None, future
            return True

    def is_late(self, op_timestamp: int) -> bool | None:
        """Return whether a decision appended at that time is late (`DecisionReceipt.late`)."""
        if self._first_timestamp == NO_TIMESTAMP:
            return None
        due = max(self._immunity_ms, self.shared.config.transaction_timeout_ms)
        return op_timestamp - self._first_timestamp >= due

    def _send(self, message: Message, *, pipelined: bool) -> SendFuture:
        shared = self.shared
        try:
            shared.check(message)
            if pipelined:
                shared.wait_for_room()
        except BridgeError as error:
            self.note_refusal(message, error)
            raise
        if self._unsent:
            self._note_repetition(message)
        with self._lock:
            after = self._step_to_send()
            size = self._bytes + message.body_bytes + message.header_bytes
            if self._count >= TRANSACTION_MESSAGES_MAX or size > TRANSACTION_BYTES_MAX:
                self.refused = _transaction_full(self.id)
                raise again(self.refused)
            index = self._count
            if not index:
                self._place(message)
            self._state = after
            self._count = index + 1
            self._bytes = size
            self._outstanding += 1
            future = SendFuture(shared.server)
            future.transaction = self
            future.index = index
            self._sends.append(future)
        self._sent_at_s = shared.now()
        now_ms = shared.time_ms()
        headers = half_headers(
            message,
            transaction_id=self.id,
            now_ms=now_ms,
            producer_group=shared.producer_group,
            index=index,
            immunity_ms=_immunity_of(message, self._immunity_on_wire),
            context=None if index else self._context,
        )
        try:
            if shared.signer is not None:
                headers = shared.signer.half(
                    self.half_partition,
                    headers,
                    key=message.key,
                    value=message.value,
                    now_ms=now_ms,
                )
            shared.produce(
                shared.half_topic,
                message.value,
                message.key,
                self.half_partition,
                future.on_delivery,
                headers=headers,
            )
            if pipelined:
                shared.server.sent()
        except RetriableError as error:
            self._not_sent(future, error)
            future.result()  # raises: the message has been counted, so the send cannot be repeated
        except BaseException as error:
            self._not_sent(future, error)
            raise
        return future

    def note_refusal(self, message: Message, error: BridgeError) -> None:
        """Keep why the transaction lacks a message, until it is sent; for good if it cannot be."""
        if self.refused is None:
            self._unsent = frozenset()
        elif not isinstance(self.refused, RetriableError):
            return
        self.refused = again(error)
        if isinstance(error, RetriableError) and len(self._unsent) < TRANSACTION_MESSAGES_MAX:
            self._unsent = self._unsent | {_body_of(message)}

    def _note_repetition(self, message: Message) -> None:
        self._unsent = self._unsent - {_body_of(message)}
        if not self._unsent and isinstance(self.refused, RetriableError):
            self.refused = None

    def _step_to_send(self) -> State:
        after = step(self._state, Event.SEND, transaction_id=self.id)
        if self._has_ended_sends:
            raise IllegalTransitionError(
                self._state, Event.SEND, transaction_id=self.id, why=_SENDS_ENDED
            )
        return after

    def _place(self, message: Message) -> None:
        """Choose the half partition: by the placement key, else by the first message's key."""
        key = message.key if self._placement_key is None else self._placement_key
        self.half_partition = self.shared.half_partition(self.id, key)
        self._immunity_ms = max(0, _immunity_of(message, self._immunity_on_wire))

    def _not_sent(self, future: SendFuture, error: BaseException) -> None:
        with self._lock:
            self._outstanding -= 1
            self._state = step(self._state, Event.SEND_NOT_ACKED)
            future.fail(error)
            future.settle()

    def _decide_at_exit(self, kind: type[BaseException] | None) -> None:
        due = self.due_at_exit(kind)
        if due is Event.COMMIT:
            self.commit()
        elif due is Event.ROLLBACK and not self.is_unanswered():
            try:
                self.rollback()
            except BridgeError as failure:
                log_failed_rollback(self.id, failure)

    def _decide_and_wait(
        self, event: Event, timeout: float | None, *, wait: bool | None
    ) -> DecisionFuture:
        if wait is None:
            wait = timeout is not None or self.shared.waits_for_decisions
        future = self._decide(event, pipelined=not wait)
        if wait or future.done():  # done: acknowledged before, or not sent
            future.result(timeout)
        return future

    def _decide(self, event: Event, *, pipelined: bool) -> DecisionFuture:
        shared = self.shared
        shared.check_open(decides=True)
        if event is Event.COMMIT and self.commit_held:
            raise IllegalTransitionError(
                self._state, event, transaction_id=self.id, why=self.commit_held
            )
        if pipelined:
            shared.wait_for_room()
        half_offset = self._rollback_offset() if event is Event.ROLLBACK else NO_OFFSET
        shared.check_open(decides=True)  # `close` may have returned meanwhile
        with self._lock:
            after = step(self._state, event, transaction_id=self.id)
            # Read after `step` allows the decision: acknowledgements arrive during the wait.
            half_offset = max(half_offset, self._last_offset)
            if self._decision is not None:
                return self._decision
            if self._decided is not None:
                return self._acknowledged(_RESOLUTIONS[event], self._decided)
            future = DecisionFuture(shared.server)
            future.transaction = self
            future.resolution = _RESOLUTIONS[event]
            self._state, self._in_doubt = after, None
            self._decision = future
        now_ms, key = shared.time_ms(), self.id.encode()
        op = encoded_decision(
            _KINDS[event],
            transaction_id=self.id,
            now_ms=now_ms,
            producer_group=shared.producer_group,
            half_offset=half_offset,
            message_count=self._count,
            actor=shared.actor,
        )
        try:
            signer, partition = shared.signer, self.half_partition
            headers = None if signer is None else signer.op(partition, key, op, now_ms)
            shared.produce(
                shared.op_topic,
                op,
                key,
                partition,
                future.on_delivery,
                headers=headers,
            )
            if pipelined:
                shared.server.sent()
        except Exception as error:  # noqa: BLE001  (in doubt covers it; the future carries it)
            self.decision_settled(future, error)
        return future

    def _rollback_offset(self) -> int:
        """Return the last acknowledged half offset; without one, the half partition's last offset.

        Raises:
            IllegalTransitionError: the transaction cannot be rolled back now; the programmer
                corrects the order of the calls.
            BridgeError: the broker did not answer, and nothing was sent; the caller repeats the
                call.
        """
        step(self._state, Event.ROLLBACK, transaction_id=self.id)
        known = self._last_offset
        return self.shared.ends.half_end(self.half_partition) if known == NO_OFFSET else known

    def _acknowledged(self, resolution: Resolution, decided: tuple[int, int]) -> DecisionFuture:
        """Return a future of the decision; to keep the first one would be a reference cycle."""
        future = DecisionFuture(self.shared.server)
        future.transaction = self
        future.resolution = resolution
        future.offset, future.timestamp = decided
        future.settle()
        return future

    def _await_sends(self, began_s: float) -> None:
        """Wait until no send is outstanding; give up sends send_timeout_ms after `began_s`."""
        now = self.shared.now
        deadline = began_s + self.shared.config.send_timeout_ms / MS_PER_S
        for future in tuple(self._sends):
            if not future.wait(max(0.0, deadline - now())):
                self.give_up_send(future)


def log_failed_rollback(transaction_id: str, error: BridgeError) -> None:
    """Log why the rollback at the end of a block failed."""
    _LOG.warning(
        "rollback of %s failed, a check settles it: %s",
        *(transaction_id, error),
        extra=about(transaction_id=transaction_id),
    )


def _body_of(message: Message) -> _Body:
    return message.topic, message.key, message.value


def _immunity_of(message: Message, default: int) -> int:
    """Return a message's immunity as it is encoded; `default` is its transaction's."""
    return default if message.immunity_ms is None else message.immunity_ms


def _is_fenced(context: bytes | None) -> bool:
    """Return whether a context marks a transaction as fenced (`halfbridge.sql.Fence.context`)."""
    if context is None:
        return False
    try:
        FENCE_CONTEXT.decode(context)
    except DecodeError:
        return False
    return True


def _transaction_full(transaction_id: str) -> InvalidMessageError:
    """Return the error for a message that exceeds the limits of its transaction."""
    return InvalidMessageError(
        f"transaction {transaction_id} is full: at most {TRANSACTION_MESSAGES_MAX} messages and "
        f"{TRANSACTION_BYTES_MAX // MIB} MiB",
        field="value",
    )


def _error_of(error: ClientError) -> BridgeError:
    return error if isinstance(error, BridgeError) else bridge_error(failure_of(error))
