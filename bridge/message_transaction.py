"""One open message transaction, as users hold it: begin, send, decide."""

from __future__ import annotations

from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from halfbridge.bridge import kafka_io
from halfbridge.bridge.errors import BridgeError, RetriableError
from halfbridge.bridge.futures import DecisionFuture, SendFuture
from halfbridge.bridge.message import Resolution
from halfbridge.bridge.transaction import Event, IllegalTransitionError, State, step
from halfbridge.bridge.transaction_records import (
    checked_context,
    decision,
    half_headers,
    half_partition,
    immunity_of,
    transaction_full,
)
from halfbridge.serde.identity import TRANSACTION_IDS
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import DEFAULT_IMMUNITY, NO_OFFSET, NO_TIMESTAMP, OpKind

if TYPE_CHECKING:
    from types import TracebackType

    from halfbridge.bridge.message import DecisionReceipt, Message, SendReceipt
    from halfbridge.bridge.shared import Shared

_MS_PER_S = 1_000
_RESOLUTIONS = {Event.COMMIT: Resolution.COMMIT, Event.ROLLBACK: Resolution.ROLLBACK}
_KINDS = {Event.COMMIT: OpKind.COMMIT, Event.ROLLBACK: OpKind.ROLLBACK}
_NOTHING_TO_COMMIT = frozenset(
    (State.INIT, State.ROLLBACK_SENT, State.ROLLBACK_IN_DOUBT, State.ROLLED_BACK)
)


class Transaction:
    """One message transaction. Thread-safe; made by `TransactionProducer.begin`.

    As a context manager: leaving normally commits if anything was sent and nothing was decided.
    Leaving by an exception (BaseException too) decides nothing, because the local transaction
    may have committed although its call raised; the check decides, unless `rollback` was called.
    All sends precede the local transaction, and have returned (or their futures are done) before
    `commit`.

    Attributes:
        id: Transaction id; store it with the local transaction so that a check can look it up.
        commit_held: Why COMMIT is refused for the time being; empty: it is not. Set by whoever
            commits the local transaction first.
        refused: Why a send was refused before anything was stored, or None. Who leaves that
            message out on purpose sets it to None; a fence refuses the transaction otherwise.
    """

    __slots__ = (
        "_bytes",
        "_context",
        "_count",
        "_decided",
        "_decision",
        "_first_timestamp",
        "_immunity_ms",
        "_immunity_on_wire",
        "_last_offset",
        "_lock",
        "_outstanding",
        "_sends",
        "_state",
        "commit_held",
        "half_partition",
        "id",
        "refused",
        "shared",
    )

    def __init__(
        self, shared: Shared, *, immunity_ms: int | None = None, context: bytes | None = None
    ) -> None:
        self.shared = shared
        self._context = checked_context(context)
        self._immunity_on_wire = DEFAULT_IMMUNITY if immunity_ms is None else immunity_ms
        self.id = TRANSACTION_IDS.next()
        self.half_partition = -1
        self.commit_held = ""
        self.refused: Exception | None = None
        self._lock = Lock()
        self._state = State.INIT
        self._count = 0
        self._bytes = 0
        self._outstanding = 0
        self._last_offset = NO_OFFSET
        self._first_timestamp = NO_TIMESTAMP
        self._immunity_ms = 0
        self._decision: DecisionFuture | None = None  # the one on its way
        self._decided: tuple[int, int] | None = None  # op offset and append time, once acked
        self._sends: list[SendFuture] = []

    @property
    def state(self) -> State:
        """Where the transaction stands; see bridge/transaction.py."""
        return self._state

    @property
    def message_count(self) -> int:
        """How many messages were sent so far, acknowledged or not."""
        return self._count

    def seal(self) -> None:
        """Refuse further sends: the local transaction, which begins, knows `message_count`.

        Raises:
            IllegalTransitionError: nothing was sent, a send is outstanding or has failed, or a
                decision was sent; nothing changed.
        """
        with self._lock:
            self._state = step(self._state, Event.SEAL, transaction_id=self.id)

    def send(self, message: Message, timeout: float | None = None) -> SendReceipt:
        """Store a half message durably and return where it stands. Blocks.

        Args:
            message: Its bytes arrive unchanged once the transaction is committed.
            timeout: Seconds to wait for the ack; None: the config's send_timeout_ms.

        Raises:
            InvalidMessageError, TopicSetupError: nothing was sent; correct the message or topic.
            HalfNotStoredError: no ack; do not run the local transaction; only rollback is
                allowed now.
            IllegalTransitionError: after a decision or a failed send; correct the caller.
        """
        return self._send(message, pipelined=False).result(timeout)

    def send_async(self, message: Message) -> SendFuture:
        """Send a half message and return at once, the pipelined form of `send`.

        May block for room (`in_flight_max`). Run the local transaction once the future has a
        result. Raises what `send` raises, HalfNotStoredError from the future too, and
        BackpressureError: no room in time; nothing was sent; slow down and repeat.
        """
        return self._send(message, pipelined=True)

    def commit(self, timeout: float | None = None) -> DecisionReceipt:
        """Decide COMMIT and return where the decision stands. Blocks. Idempotent.

        Args:
            timeout: Seconds to wait for the ack; None: the config's decision_timeout_ms.

        Raises:
            OutcomeUnknownError: in doubt; the check settles it, or call commit again.
            IllegalTransitionError: nothing sent, a send outstanding or failed, or rolled back.
        """
        return self._decide(Event.COMMIT, pipelined=False).result(timeout)

    def rollback(self, timeout: float | None = None) -> DecisionReceipt:
        """Decide ROLLBACK and return where the decision stands. Blocks. Idempotent.

        Waits for outstanding sends first.

        Args:
            timeout: Seconds to wait for each ack; None: the config's decision_timeout_ms.

        Raises:
            OutcomeUnknownError: in doubt; the check settles it, or call rollback again.
            IllegalTransitionError: nothing was sent, or a commit was.
        """
        return self._decide(Event.ROLLBACK, pipelined=False).result(timeout)

    def commit_async(self) -> DecisionFuture:
        """Send COMMIT and return at once. Once: a repeat returns the same future.

        Raises:
            IllegalTransitionError: nothing sent, a send outstanding or failed, or rolled back.
        """
        return self._decide(Event.COMMIT, pipelined=True)

    def rollback_async(self) -> DecisionFuture:
        """Send ROLLBACK and return at once; without an acknowledged send ask a broker first."""
        return self._decide(Event.ROLLBACK, pipelined=True)

    def __enter__(self) -> Transaction:  # noqa: PYI034  (Self came with 3.11)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._state not in _NOTHING_TO_COMMIT:
            self.commit()

    def _send(self, message: Message, *, pipelined: bool) -> SendFuture:
        shared = self.shared
        try:
            shared.check(message)
            if pipelined:
                shared.wait_for_room()
        except BridgeError as error:
            self.refused = error
            raise
        if isinstance(self.refused, RetriableError):
            self.refused = None  # nothing was wrong with the message, and the call was repeated
        with self._lock:
            after = step(self._state, Event.SEND, transaction_id=self.id)
            size = self._bytes + message.body_bytes + message.header_bytes
            if self._count >= TRANSACTION_MESSAGES_MAX or size > TRANSACTION_BYTES_MAX:
                self.refused = transaction_full(self.id)
                raise self.refused
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
        headers = half_headers(
            message,
            transaction_id=self.id,
            producer_group=shared.producer_group,
            index=index,
            immunity_ms=immunity_of(message, self._immunity_on_wire),
            context=None if index else self._context,
        )
        try:
            shared.produce(
                shared.half_topic,
                message.value,
                message.key,
                self.half_partition,
                future.on_delivery,
                headers=headers,
                pipelined=pipelined,
            )
        except RetriableError as error:
            self._not_sent(future, error)
            future.result()  # raises: it has been counted, and cannot be repeated
        except BaseException as error:
            self._not_sent(future, error)
            raise
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
        elif event is Event.ROLLBACK:
            self._await_sends()
        half_offset = self._rollback_offset() if event is Event.ROLLBACK else NO_OFFSET
        with self._lock:
            after = step(self._state, event, transaction_id=self.id)
            # Not read before `step` allows it: acknowledgements come in while we wait.
            half_offset = max(half_offset, self._last_offset)
            if self._decision is not None:
                return self._decision
            future = DecisionFuture(shared.server)
            future.transaction = self
            future.resolution = _RESOLUTIONS[event]
            if self._decided is not None:
                future.offset, future.timestamp = self._decided
                future.settle()
                return future
            self._state = after
            self._decision = future
        op = decision(
            _KINDS[event],
            transaction_id=self.id,
            producer_group=shared.producer_group,
            half_offset=half_offset,
            message_count=self._count,
            actor=shared.actor,
        )
        try:
            shared.produce(
                shared.op_topic,
                op,
                self.id.encode(),
                self.half_partition,
                future.on_delivery,
                headers=None,
                pipelined=pipelined,
            )
        except Exception as error:  # noqa: BLE001  (in doubt covers it; the future carries it)
            self.decision_settled(future, error)
        return future

    def is_late(self, op_timestamp: int) -> bool:
        """Tell whether a decision appended then came no sooner than the first check was due."""
        due = max(self._immunity_ms, self.shared.config.transaction_timeout_ms)
        return op_timestamp - self._first_timestamp >= due

    def half_settled(self, future: SendFuture, error: Any) -> None:
        """Note what became of one half record (for its future, inside `poll`)."""
        with self._lock:
            self._outstanding -= 1
            if error is None:
                self._last_offset = max(self._last_offset, future.offset)
                if not future.index:
                    self._first_timestamp = future.timestamp
                if not self._outstanding:
                    self._state = step(self._state, Event.SENDS_ACKED)
            else:
                future.fail(kafka_io.map_error(error))
                self._state = step(self._state, Event.SEND_NOT_ACKED)
            if not self._outstanding:
                self._sends.clear()  # they refer back: no work for the garbage collector
            future.settle()

    def decision_settled(self, future: DecisionFuture, error: Any) -> None:
        """Note what became of an op record (for its future, inside `poll`)."""
        with self._lock:
            if error is None:
                self._state = step(self._state, Event.DECISION_ACKED)
                self._decided = (future.offset, future.timestamp)
            else:
                future.fail(kafka_io.map_error(error))
                if self._decision is future:  # not an older one that was repeated since
                    self._state = step(self._state, Event.DECISION_NOT_ACKED)
            if self._decision is future:
                self._decision = None
            future.settle()

    def give_up_send(self, future: SendFuture) -> bool:
        """Note that a caller waits no longer for an ack; False if it came just now."""
        with self._lock:
            if future.done():
                return False
            self._state = step(self._state, Event.SEND_NOT_ACKED)
            return True

    def give_up_decision(self, future: DecisionFuture) -> bool:
        """Note that a caller waits no longer for an ack; False if it came just now."""
        with self._lock:
            if future.done():
                return False
            if self._decision is future:
                self._state = step(self._state, Event.DECISION_NOT_ACKED)
                self._decision = None
            return True

    def _place(self, message: Message) -> None:
        """Choose the half partition by the first message, for all of them."""
        self.half_partition = half_partition(self.id, message.key, self.shared.partitions)
        self._immunity_ms = max(0, immunity_of(message, self._immunity_on_wire))

    def _not_sent(self, future: SendFuture, error: BaseException) -> None:
        with self._lock:
            self._outstanding -= 1
            self._state = step(self._state, Event.SEND_NOT_ACKED)
            future.fail(error)
            future.settle()

    def _await_sends(self) -> None:
        """Wait until no send is outstanding; give up those that do not settle in time."""
        deadline = monotonic() + self.shared.config.send_timeout_ms / _MS_PER_S
        for future in tuple(self._sends):
            if not future.wait(max(0.0, deadline - monotonic())):
                self.give_up_send(future)

    def _rollback_offset(self) -> int:
        """Return the last half offset known; the half partition's last where none is.

        Raises:
            IllegalTransitionError: it cannot be rolled back now.
            BridgeError: the broker did not say; nothing was sent, repeat the call.
        """
        step(self._state, Event.ROLLBACK, transaction_id=self.id)
        known = self._last_offset
        return self.shared.half_end(self.half_partition) if known == NO_OFFSET else known
