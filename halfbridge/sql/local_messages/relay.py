"""The relay: a halfbridge producer whose local transactions mark rows.

    read -> plan -> send half messages -> database: fence rows, marks -> COMMIT -> second mark

docs/adr/0013-the-relay-is-a-producer.md says why each row is delivered once and in order.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from time import monotonic
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from halfbridge.bridge.transaction import IllegalTransitionError
from halfbridge.serde.units import MS_PER_S
from halfbridge.sql.errors import FencedError, SqlError
from halfbridge.sql.local_messages.claims import Claims, Leases, end_read
from halfbridge.sql.local_messages.marks import Marks, RowsLostError, engine_of
from halfbridge.sql.local_messages.metrics import RelayMetrics
from halfbridge.sql.local_messages.sending import (
    InFlight,
    RelayStep,
    abandon,
    plan_batches,
    plan_keyless,
    rotated,
    send_batches,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.kafka.errors import BridgeError
    from halfbridge.sql.fence import Fence
    from halfbridge.sql.local_messages.claims import Snapshot
    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.marks import Failure
    from halfbridge.sql.local_messages.sending import Attempt, Batch, Sending
    from halfbridge.sql.local_messages.writer import LocalMessages

_LOG = logging.getLogger("halfbridge.sql")
# A lease is renewed this many times before it expires, so that one failed renewal does no harm.
_RENEWALS_PER_LEASE = 3


class Relay:
    """Sends the rows of a local message table. Not thread-safe: one thread runs rounds.

    Args:
        messages: The table.
        fence: A fence in the same database, with the producer's group.
        producer: A started producer with `fence.check` as its checker.
        config: The relay's settings.
        on_step: Called at each step of a round, for tests and for tracing.

    Attributes:
        lost_rounds: Number of rounds in a row, up to the last one, that lost an attempt.
        step: The last step of the present or last round; None: the round has read the rows at most.
    """

    def __init__(
        self,
        messages: LocalMessages,
        fence: Fence,
        producer: TransactionProducer,
        config: RelayConfig,
        *,
        on_step: Callable[[RelayStep], object] | None = None,
    ) -> None:
        self.metrics = RelayMetrics()
        self.config = config
        self.lost_rounds = 0
        self.step: RelayStep | None = None
        self.messages = messages
        self.marks = Marks(messages)
        self.engine = engine_of(messages)
        self.claims = Claims(messages, config)
        self._fence = fence
        self._producer = producer
        self._watcher = on_step or (lambda _step: None)
        owner = config.relay_name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._leases = Leases(messages, self.engine, owner=owner, lease_ms=config.lease_ms)
        self._renew_at = 0.0
        self._has_lost = False
        self._turn = 0
        self._in_flight = InFlight(producer, self.marks, self.metrics, on_step=self._on_step)

    @property
    def owner(self) -> str:
        """The name under which the relay holds leases."""
        return self._leases.owner

    @property
    def failing(self) -> Mapping[int, BridgeError]:
        """Half partition -> the last failure there, without a success since."""
        return self._in_flight.failing

    def round(self) -> bool:
        """Relay the waiting rows, at most one batch for each half partition.

        A half partition whose brokers do not acknowledge delays no other one: its batch is left in
        flight, or sent again after a pause, and `failing` shows the failure. Returns whether
        anything was relayed or is under way: then the next round should follow at once.

        Raises:
            SQLAlchemyError, SqlError: the database has failed; try again later. Nothing is lost.
            BridgeError: Kafka has failed as a whole; try again later. Nothing is lost.
        """
        began = monotonic()
        self._has_lost = False
        self.step = None
        has_worked = self._relay_all()
        self.lost_rounds = self.lost_rounds + 1 if self._has_lost else 0
        if has_worked:
            self.metrics.round_s.observe(monotonic() - began)
        return has_worked

    def repeat_orphans(self) -> None:
        """Repeat the COMMITs of transactions without keys whose relay is probably dead.

        Raises:
            SQLAlchemyError, BridgeError: as of `round`; try again later. Nothing is lost.
        """
        with self.engine.connect() as connection:
            orphans = self.claims.orphans(connection)
            connection.rollback()
        self._in_flight.repeat(orphans)

    def acknowledge(self) -> None:
        """Write the missing second marks; see InFlight.acknowledge.

        Raises:
            SQLAlchemyError, SqlError: the database has failed; try again later. Nothing is lost.
        """
        self._in_flight.acknowledge(self.engine)

    def close(self) -> None:
        """Write the missing second marks, and release the buckets; a failure is logged."""
        # The driver's own errors too: see RelayService.
        drivers = self.engine.dialect.loaded_dbapi.Error
        try:
            self._in_flight.await_decisions()
            self.acknowledge()
            self._leases.release()
        except (SQLAlchemyError, SqlError, drivers) as error:
            _LOG.warning("relay stopped without releasing its leases; they expire: %s", error)

    def _on_step(self, step: RelayStep) -> None:
        self.step = step
        self._watcher(step)

    def _relay_all(self) -> bool:
        self._keep_leases()
        # One connection for reading and marking: taking one from the pool costs a round trip.
        with self.engine.connect() as connection:
            snapshot = self.claims.read(connection, self._leases.held)
            end_read(connection, monotonic())
            has_worked = self._relay_keyed(connection, self._planned(snapshot))
        has_worked = (snapshot.has_keyless and self._relay_keyless()) or has_worked
        if has_worked or not self._in_flight.is_waiting:
            return has_worked
        self.acknowledge()  # there is nothing else to do until brokers answer
        return True

    def _planned(self, snapshot: Snapshot) -> list[Batch]:
        """Repeat the COMMITs that may be missing; return the batches that may be sent now."""
        self._in_flight.await_decisions()
        repeated = self._in_flight.repeat(snapshot.unacknowledged)
        blocked = repeated | self._in_flight.closed_half_partitions()
        return plan_batches(
            snapshot.messages,
            half_partitions=self._producer.half_partitions,
            blocked=blocked,
            messages_max=self.config.transaction_rows_max,
            bytes_max=self.config.transaction_bytes_max,
        )

    def _keep_leases(self) -> None:
        if monotonic() < self._renew_at:
            return
        self._leases.renew()
        self._renew_at = monotonic() + self.config.lease_ms / MS_PER_S / _RENEWALS_PER_LEASE
        self.metrics.buckets.set(len(self._leases.held))

    def _relay_keyed(self, connection: Connection, batches: Sequence[Batch]) -> bool:
        if not batches and not self._in_flight.is_waiting:
            return False
        self._on_step(RelayStep.ROWS_READ)
        sendings, failures = self._begin(batches)
        groups = self._in_flight.await_sendings(sendings)
        self._note_failures(failures)
        if not groups:
            return False
        self._on_step(RelayStep.SENT)
        has_worked = False
        while groups:
            attempts = groups.pop(0)
            try:
                has_worked = self._commit(connection, attempts, self._leases.held) or has_worked
            except BaseException:
                for each in groups:
                    abandon(each)
                raise
        return has_worked

    def _relay_keyless(self) -> bool:
        """Relay rows without keys, which stay locked until they are marked (not on SQLite)."""
        with self.engine.connect() as connection:
            rows = self.claims.lock_keyless(connection)
            if not rows:
                return False
            if not self.messages.database.locks_rows:
                connection.rollback()
            self._on_step(RelayStep.ROWS_READ)
            self._turn += 1
            batches = plan_keyless(
                rows,
                messages_max=self.config.transaction_rows_max,
                bytes_max=self.config.transaction_bytes_max,
            )
            everywhere = set(range(self._producer.half_partitions))
            places = everywhere - self._in_flight.closed_half_partitions()
            sendings, failures = self._begin(batches, rotated(places or everywhere, self._turn))
            attempts = self._in_flight.await_now(sendings, is_patient=len(places) <= 1)
            if failures:
                # The locks would delay recording the failures. The next round reads the rows again.
                abandon(attempts)
                connection.rollback()
                self._note_failures(failures)
                return False
            if not attempts:
                return False
            self._on_step(RelayStep.SENT)
            return self._commit(connection, attempts, None)

    def _begin(
        self, batches: Sequence[Batch], places: Sequence[int] = ()
    ) -> tuple[list[Sending], list[Failure]]:
        context = self._fence.context()
        return send_batches(self._producer, batches, context=context, places=places)

    def _commit(
        self, connection: Connection, attempts: Sequence[Attempt], epochs: dict[int, int] | None
    ) -> bool:
        """Mark rows and commit: the database, then the message transactions."""
        written = self._in_flight.acknowledged
        try:
            for attempt in attempts:
                self._fence.enter(connection, attempt.tx)
                self.marks.mark(
                    connection, attempt.rows, attempt.marked, owner=self.owner, epochs=epochs
                )
            if written:  # second marks of the round before need no transaction of their own
                self.marks.acknowledge(connection, written)
            self._on_step(RelayStep.MARKED)
        except (RowsLostError, FencedError) as error:
            connection.rollback()
            abandon(attempts)
            self.metrics.lost.inc(len(attempts))
            self._renew_at = 0.0
            self._has_lost = True
            _LOG.info(
                "relay: rows or lease lost to another relay; %d message transactions rolled back:"
                " %s",
                *(len(attempts), error),
            )
            return False
        except (SQLAlchemyError, SqlError, IllegalTransitionError):
            abandon(attempts)  # COMMIT was not sent to the database
            raise
        # An error from here on decides nothing, because the database may have committed. The next
        # round finds out from the rows, and a check finds out from the fence.
        connection.commit()
        self._on_step(RelayStep.COMMITTED)
        self._in_flight.note_written(written)
        self._in_flight.decide(attempts)
        return True

    def _note_failures(self, failures: Sequence[Failure]) -> None:
        if not failures:
            return
        with self.engine.begin() as connection:
            waiting, given_up = self.marks.fail(connection, failures, self.config)
        self.metrics.retries.inc(len(waiting) + len(given_up))
        self.metrics.errors.inc(len(given_up))
        causes = {failure.message.id: failure.cause for failure in failures}
        for row_id in waiting:
            _LOG.warning("local message %d failed and will be retried: %s", row_id, causes[row_id])
        for row_id in given_up:
            _LOG.error(
                "local message %d failed for the last time, its state is MESSAGE_ERROR: %s",
                row_id,
                causes[row_id],
            )
