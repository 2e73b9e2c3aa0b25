"""Sends the batches of one subscription, and moves its row with each batch."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from halfbridge.bridge.errors import BridgeError
from halfbridge.bridge.transaction import IllegalTransitionError
from halfbridge.sql.log_subscription.stored import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.bridge import Message, Transaction, TransactionProducer
    from halfbridge.sql.fence import Fence
    from halfbridge.sql.log_subscription.positions import Positions
    from halfbridge.sql.log_subscription.stored import Stored

_LOG = logging.getLogger("halfbridge.sql")


class Claims:
    """The row of one subscription as this relay knows it, and the relay's current transaction.

    Args:
        producer: A started producer.
        fence: A fence in the database of the positions.
        positions: The tables of positions.
        name: Name of the subscription. Its hash chooses the half partition of all transactions.
        on_step: Called with the name of each step.
    """

    def __init__(
        self,
        producer: TransactionProducer,
        fence: Fence,
        positions: Positions,
        *,
        name: str,
        on_step: Callable[[str], None],
    ) -> None:
        self._producer = producer
        self._fence = fence
        self._positions = positions
        self._name = name
        self._on_step = on_step
        self._stored: Stored | None = None
        self._is_noted = True  # whether `is_acknowledged` of `_stored` is in the table
        self._in_flight: Transaction | None = None  # its local transaction may have committed

    def take(self, stored: Stored) -> None:
        """Continue from the row `stored`, which was just read."""
        self._stored, self._is_noted = stored, stored.is_acknowledged

    def deliver(self, messages: Sequence[Message], after: Stored) -> None:
        """Send messages, move the row to `after` with the fence row, and commit."""
        before = self.row
        tx = self._producer.begin(context=self._fence.context(), placement_key=self._name.encode())
        self._on_step("begin")
        try:
            futures = [tx.send_async(each) for each in messages]
            offset = max(each.result().half_offset for each in futures)
        except BaseException:
            _roll_back_quietly(tx)
            raise
        self._on_step("sent")
        decision = Decision(tx.id, tx.half_partition, offset, tx.message_count)
        after = replace(after, decision=decision, is_acknowledged=False)
        self._in_flight = tx
        with self._positions.claiming() as connection:
            self._fence.enter(connection, tx)
            after = self._positions.claim(connection, self._name, before, after)
            self._on_step("claimed")
            connection.commit()
        self._in_flight, self._stored, self._is_noted = None, after, False
        self._on_step("committed")
        tx.commit()
        self._on_step("decided")
        # Written when the next batch is claimed, or when there is no batch for a while.
        self._stored = replace(after, is_acknowledged=True)

    def note_decision(self) -> None:
        """Store that the last COMMIT is acknowledged, so that no relay repeats it."""
        stored = self._stored
        if stored is not None and stored.is_acknowledged and not self._is_noted:
            self.move(stored)
            self._on_step("noted")

    def repeat_commit(self) -> None:
        """Repeat the COMMIT of a relay that may have died before it sent the COMMIT."""
        stored = self.row
        decision = stored.decision
        if decision is None or stored.is_acknowledged:
            return
        self._producer.repeat_commit(
            decision.transaction_id,
            half_partition=decision.half_partition,
            half_offset=decision.half_offset,
            message_count=decision.message_count,
        ).result()
        self._on_step("repeated")
        self.move(replace(stored, is_acknowledged=True))

    def settle(self) -> None:
        """Find out the outcome of a local transaction whose commit failed."""
        tx = self._in_flight
        if tx is not None and self._fence.roll_back(tx.id):
            _roll_back_quietly(tx)
        self._in_flight = None  # if it committed, the row says so

    def move(self, after: Stored) -> None:
        """Move the row in a separate database transaction."""
        self._stored = self._positions.move(self._name, self.row, after)
        self._is_noted = after.is_acknowledged

    @property
    def row(self) -> Stored:
        """The row, as this relay has read or moved it last."""
        if self._stored is None:
            raise RuntimeError("the row was not read yet")
        return self._stored


def _roll_back_quietly(tx: Transaction) -> None:
    try:
        tx.rollback()
    except (BridgeError, IllegalTransitionError) as error:
        _LOG.warning("rollback of %s failed, a check settles it: %s", tx.id, error)
