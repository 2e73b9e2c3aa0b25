"""Futures of a message transaction's writes, as `send_async` and `commit_async` return them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.bridge.delivery import HALF_MESSAGE, Delivery
from halfbridge.bridge.message import DecisionReceipt, Resolution, SendReceipt
from halfbridge.kafka.errors import HalfNotStoredError, OutcomeUnknownError
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from halfbridge.bridge.message_transaction import Transaction
    from halfbridge.kafka.errors import BridgeError
    from halfbridge.kafka.ports import ClientError, SentRecord


class SendFuture(Delivery):
    """The outcome of a `send_async`."""

    __slots__ = ("index", "transaction")

    transaction: Transaction
    index: int

    def on_delivery(self, error: ClientError | None, record: SentRecord) -> None:
        """Note the result of the half record (delivery callback of the Kafka client)."""
        transaction = self.transaction
        error = error or transaction.shared.not_proven(record)
        if error is None:
            _place(self, record)
            transaction.shared.outcomes.half_stored()
        else:
            transaction.shared.outcomes.failed(HALF_MESSAGE)
        transaction.half_settled(self, error)

    def exception(self) -> BridgeError | None:
        """Return why the half message is not known to be durable; None if durable or not done."""
        if self._error is None:
            return None
        failure = HalfNotStoredError(
            f"half message {self.index} of transaction {self.transaction.id} was not "
            f"acknowledged ({self._error}); do not run the local transaction; roll back",
            transaction_id=self.transaction.id,
        )
        failure.__cause__ = self._error
        return failure

    def result(self, timeout: float | None = None) -> SendReceipt:
        """Return the position of the half message, waiting up to `timeout` seconds.

        `timeout` None: the config's send_timeout_ms.

        Raises:
            HalfNotStoredError: not acknowledged (in time); the caller rolls back, for nothing else
                is allowed now.
        """
        if self._is_done:
            return self.outcome(0.0)
        shared = self.transaction.shared
        seconds = shared.config.send_timeout_ms / MS_PER_S if timeout is None else timeout
        self.wait(seconds)
        return self.outcome(seconds)

    def outcome(self, waited_s: float) -> SendReceipt:
        """Return or raise what `result` does, without waiting: the caller waited `waited_s`."""
        transaction = self.transaction
        if not self._is_done and transaction.give_up_send(self):
            raise HalfNotStoredError(
                f"no acknowledgement of half message {self.index} of transaction "
                f"{transaction.id} in {waited_s:g} s; do not run the local transaction; roll back",
                transaction_id=transaction.id,
            )
        failure = self.exception()
        if failure is not None:
            raise failure
        return SendReceipt(
            transaction_id=transaction.id,
            message_index=self.index,
            half_partition=transaction.half_partition,
            half_offset=self.offset,
        )


class DecisionFuture(Delivery):
    """The outcome of a decision, as `commit`, `rollback` and their `_async` forms return it.

    Thread-safe; any number of threads may wait.
    """

    __slots__ = ("resolution", "transaction")

    transaction: Transaction
    resolution: Resolution

    def on_delivery(self, error: ClientError | None, record: SentRecord) -> None:
        """Note the result of the op record (delivery callback of the Kafka client)."""
        transaction = self.transaction
        error = error or transaction.shared.not_proven(record)
        outcomes = transaction.shared.outcomes
        if error is None:
            _place(self, record)
            is_commit = self.resolution is Resolution.COMMIT
            (outcomes.commit_stored if is_commit else outcomes.rollback_stored)()
        else:
            outcomes.failed(self.resolution.value)
            if not self.is_awaited:
                self.add_done_callback(transaction.shared.failures.note)
        transaction.decision_settled(self, error)

    def exception(self) -> BridgeError | None:
        """Return why the decision is in doubt; None if it is durable, or not done."""
        if self._error is None:
            return None
        failure = OutcomeUnknownError(
            f"{self.resolution.value} of transaction {self.transaction.id} is in doubt "
            f"({self._error}); the check settles it, or repeat the same call",
            transaction_id=self.transaction.id,
        )
        failure.__cause__ = self._error
        return failure

    def result(self, timeout: float | None = None) -> DecisionReceipt:
        """Return the position of the decision, waiting up to `timeout` seconds.

        `timeout` None: the config's decision_timeout_ms.

        Raises:
            OutcomeUnknownError: not acknowledged (in time); the check settles it.
        """
        if self._is_done:
            return self.outcome(0.0)
        shared = self.transaction.shared
        seconds = shared.config.decision_timeout_ms / MS_PER_S if timeout is None else timeout
        self.wait(seconds)
        return self.outcome(seconds)

    def outcome(self, waited_s: float) -> DecisionReceipt:
        """Return or raise what `result` does, without waiting: the caller waited `waited_s`."""
        transaction = self.transaction
        if not self._is_done and transaction.give_up_decision(self):
            raise OutcomeUnknownError(
                f"no acknowledgement of {self.resolution.value} of transaction {transaction.id} "
                f"in {waited_s:g} s; the check settles it, or repeat the same call",
                transaction_id=transaction.id,
            )
        failure = self.exception()
        if failure is not None:
            raise failure
        return DecisionReceipt(
            transaction_id=transaction.id,
            resolution=self.resolution,
            op_partition=transaction.half_partition,
            op_offset=self.offset,
            late=transaction.is_late(self.timestamp),
        )


def _place(delivery: Delivery, record: SentRecord) -> None:
    delivery.offset = record.offset()  # type: ignore[assignment]  # not None: it is proven
    delivery.timestamp = record.timestamp()[1]
