"""One message transaction, as users handle it: begin, send, decide."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.bridge.transaction import Event, State, step
from halfbridge.bridge.transaction_writes import TransactionWrites
from halfbridge.kafka.errors import BridgeError

if TYPE_CHECKING:
    from types import TracebackType

    from halfbridge.bridge.futures import DecisionFuture, SendFuture
    from halfbridge.bridge.message import DecisionReceipt, Message, SendReceipt

_LOG = logging.getLogger("halfbridge.bridge")
_NOTHING_TO_COMMIT = frozenset(
    (State.INIT, State.ROLLBACK_SENT, State.ROLLBACK_IN_DOUBT, State.ROLLED_BACK)
)
_UNDECIDED = frozenset((State.HALF_SENDING, State.HALF_SENT, State.SEALED, State.SEND_FAILED))


class Transaction(TransactionWrites):
    """One message transaction. Thread-safe; made by `TransactionProducer.begin`.

    As a context manager: leaving normally commits if anything was sent and nothing was decided.
    Leaving by an exception (BaseException too) decides nothing, because the local transaction
    may have committed although its call raised; the check decides, unless `rollback` was called or
    `begin(rollback_on=...)` names the exception.
    All sends precede the local transaction, and have returned (or their futures are done) before
    `commit`.

    Attributes:
        id: Transaction id. Store it with the local transaction, so that a checker can look it up.
        commit_held: Why COMMIT is refused for now; empty: COMMIT is not refused. Set by code that
            commits the local transaction first.
        refused: Why a send was refused before anything was stored, or None. A caller that leaves
            the message out on purpose sets this to None; otherwise a fence refuses the transaction.
    """

    __slots__ = ()

    @property
    def state(self) -> State:
        """The state of the transaction; see bridge/transaction.py."""
        return self._state

    @property
    def message_count(self) -> int:
        """How many messages were sent so far, acknowledged or not."""
        return self._count

    def seal(self) -> None:
        """Refuse further sends, because the local transaction begins and records `message_count`.

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
        """Send ROLLBACK, return at once; without an acknowledged send a broker is asked first."""
        return self._decide(Event.ROLLBACK, pipelined=True)

    def __enter__(self) -> Transaction:  # noqa: PYI034  (Self came with 3.11)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            if self._state not in _NOTHING_TO_COMMIT:
                self.commit()
        elif issubclass(kind, self._rollback_on) and self._state in _UNDECIDED:
            roll_back_quietly(self, None)


def roll_back_quietly(transaction: Transaction, timeout: float | None) -> None:
    """Roll back a transaction that was not completely sent; a failure is only logged."""
    try:
        transaction.rollback(timeout)
    except BridgeError as error:
        _LOG.warning("rollback of %s failed, a check settles it: %s", transaction.id, error)
