"""The relay of a local message table as a service: its rounds, and its work in other threads.

An idle relay is woken by PostgreSQL's notifications, otherwise by the clock.
"""

from __future__ import annotations

import logging
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import BridgeError
from halfbridge.relays import ROUND_S_MAX, RelayRunner
from halfbridge.serde.units import MS_PER_S
from halfbridge.sql.dialects.base import replace_pool
from halfbridge.sql.local_messages.dead_letters import DeadLetters, LetterReader
from halfbridge.sql.local_messages.marks import RowsLostError
from halfbridge.sql.local_messages.settling import Settling, backlog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.relay import Relay
    from halfbridge.sql.local_messages.settling import PreparedMessage
    from halfbridge.sql.local_messages.writer import LocalMessages

_LOG = logging.getLogger("halfbridge.sql")
_LETTERS_WAIT_S = 0.5  # how late a stop is seen
_LETTERS_PAUSE_S = 1.0  # after a failure
_LETTERS_COMMIT_S = 5.0  # if there are only dead letters of other groups
# Relays that start and stop make each other lose single rounds, but not this many in a row.
LOST_ROUNDS_MAX = 5
# Interval of counting the backlog, which reads the whole index.
_BACKLOG_S = 5.0
# How long closing the producer may take after the work has ended (DRAIN_S_MAX). With 2 s for its
# checkers these are 25 s of the 30 s after which Kubernetes kills. Checks decide what is left.
CLOSE_S_MAX = 8.0


class RelayService(RelayRunner):
    """Runs a relay until `stop`. `run` is called once.

    Args:
        relay: The relay; its rounds run in a thread of their own.
        producer: The relay's producer.
        callback: For prepared rows; see Settling. Runs in a thread of its own.
        round_s_max: Longest time without a successful round while the relay is healthy, seconds.
    """

    def __init__(
        self,
        relay: Relay,
        producer: TransactionProducer,
        *,
        callback: Callable[[PreparedMessage], bool | None] | None = None,
        round_s_max: float = ROUND_S_MAX,
    ) -> None:
        config = relay.config
        # The driver's own errors too: when SQLAlchemy sets or restores the isolation level of a
        # dead connection, it lets the driver's error pass.
        self._driver_error = relay.engine.dialect.loaded_dbapi.Error
        super().__init__(
            relay.metrics,
            _LOG,
            retried=(SQLAlchemyError, BridgeError, self._driver_error),
            round_s_max=round_s_max + config.poll_ms_max / MS_PER_S,
        )
        self._relay = relay
        self._relay_metrics = relay.metrics
        self._producer = producer
        self._settling = Settling(relay.messages, config, callback)
        self._letters = DeadLetters(
            relay.messages, relay.engine, relay.marks, relay.metrics, config
        )
        self._wakeups = Wakeups(
            config.poll_ms_min, config.poll_ms_max, lambda: self._listener.is_listening
        )
        self._listener = Listener(relay.messages, self._wakeups.wake, self._stopping)
        self._failing_partitions: dict[int, BridgeError] = {}
        self._housekeeping_at = 0.0

    def stop(self) -> None:
        """Make `run` return after its current round. Thread-safe."""
        super().stop()
        self._wakeups.wake()

    def failed(self, what: str, error: Exception | str) -> None:
        """Record a failure; replace the pool after an error that SQLAlchemy has not wrapped."""
        if isinstance(error, self._driver_error):
            replace_pool(self._relay.engine)
        super().failed(what, error)

    def _other_work(self) -> Mapping[str, Callable[[], None]]:
        return {
            "dead letters": self._read_letters,
            "settling": self._settle,
            "wake-ups": self._listener.run,
        }

    def _close(self) -> None:
        self._relay.close()

    def _last_step(self) -> str:
        step = self._relay.step
        return "reading the waiting rows" if step is None else step.value

    def _work(self) -> None:
        self._wakeups.begin()
        has_worked = self._relay.round()
        if not has_worked:
            self._relay.acknowledge()
        self._withdraw_and_repeat()
        self.succeeded()
        self._report_lost_rounds()
        self._report_half_partitions()
        if has_worked:
            self._wakeups.worked()
        else:
            self._wakeups.wait()

    def _report_lost_rounds(self) -> None:
        if self._relay.lost_rounds < LOST_ROUNDS_MAX:
            self.recovered("marks")
            return
        error = RowsLostError(
            f"{LOST_ROUNDS_MAX} rounds or more in a row have sent rows that this relay may not mark"
        )
        self.failed("marks", error)

    def _report_half_partitions(self) -> None:
        failing = self._relay.failing
        for number in sorted({*self._failing_partitions, *failing}):
            what, error = f"half partition {number}", failing.get(number)
            if error is None:
                self.recovered(what)
            elif self._failing_partitions.get(number) is not error:
                self.failed(what, error)
        self._failing_partitions = dict(failing)

    def _withdraw_and_repeat(self) -> None:
        """Withdraw unconfirmed rows, and repeat COMMITs of dead relays for rows without keys."""
        now = monotonic()
        if now < self._housekeeping_at:
            return
        self._housekeeping_at = now + self._relay.config.housekeeping_ms / MS_PER_S
        self._relay_metrics.withdrawn.inc(self._settling.withdraw())
        self._relay.repeat_orphans()

    def _settle(self) -> None:
        """Ask the callback, which may take long, and count the waiting rows."""
        next_count = 0.0
        while not self._stopping.wait(self._relay.config.housekeeping_ms / MS_PER_S):
            with self.surviving("settling"):
                if self._settling.ask():
                    self._wakeups.wake()
                if monotonic() >= next_count:
                    next_count = monotonic() + _BACKLOG_S
                    self._relay_metrics.note_backlog(*backlog(self._relay.messages))

    def _read_letters(self) -> None:
        while not self.is_stopping:
            with self.surviving("dead letters"):
                self._process_letters()
            self._stopping.wait(_LETTERS_PAUSE_S)

    def _process_letters(self) -> None:
        """Process dead letters until `stop` or a failure, after which they are read again."""
        reader = LetterReader(self._producer.config, system_ports())
        commit_at = 0.0
        try:
            while not self.is_stopping:
                letters = reader.read(_LETTERS_WAIT_S)
                if sum(self._letters.take(letter) for letter in letters):
                    self._wakeups.wake()
                # Also past dead letters of other groups; otherwise the lag would grow for ever.
                if letters or monotonic() >= commit_at:
                    reader.commit()
                    commit_at = monotonic() + _LETTERS_COMMIT_S
                self.recovered("dead letters")
        finally:
            reader.close()


_LISTEN_SLICE_S = 0.5  # how soon a listener notices that it must stop
_RECONNECT_S = 1.0  # meanwhile the clock wakes the relay
# After this time without a notification the connection is tested: through a dead connection no
# notification would ever come.
_PROBE_S = 10.0


class Wakeups:
    """Waits that grow while there is nothing to do. Only `wake` is thread-safe.

    While notifications come (`is_notified`), each wait is the longest.
    """

    def __init__(
        self, wait_ms_min: int, wait_ms_max: int, is_notified: Callable[[], bool] = lambda: False
    ) -> None:
        self._event = Event()
        self._wait_ms_min, self._wait_ms_max = wait_ms_min, wait_ms_max
        self._wait_ms = wait_ms_min
        self._is_notified = is_notified

    def wake(self) -> None:
        """End the present wait, or the next one."""
        self._event.set()

    def begin(self) -> None:
        """Begin a round: only later calls of `wake` count."""
        self._event.clear()

    def worked(self) -> None:
        """Make the next wait the shortest: the round has found work."""
        self._wait_ms = self._wait_ms_min

    def wait(self) -> None:
        """Wait until `wake` is called, or up to a time that grows with each call."""
        wait_ms = self._wait_ms_max if self._is_notified() else self._wait_ms
        self._wait_ms = min(self._wait_ms_max, 2 * self._wait_ms)
        if self._event.wait(wait_ms / 1_000):
            self._wait_ms = self._wait_ms_min


class Listener:
    """Listens to the notifications of the table's writers, on its own connection (PostgreSQL).

    A driver without notifications, or a server that is down, is no failure: meanwhile the clock
    wakes the relay.
    """

    def __init__(
        self, messages: LocalMessages, wake: Callable[[], object], stopping: Event
    ) -> None:
        self._messages = messages
        self._wake = wake
        self._stopping = stopping
        self.is_listening = False

    def run(self) -> None:
        """Listen until `stopping` is set, if the database has notifications."""
        if not self._messages.database.notifies:
            return
        level = logging.WARNING  # the first time only
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001  (drivers raise their own)
                _LOG.log(level, "no notifications of local messages, polling: %s", error)
                level = logging.DEBUG
            self.is_listening = False
            self._stopping.wait(_RECONNECT_S)

    def _listen(self) -> None:
        with self._messages.engine.connect() as connection:
            connection.detach()  # closed at the end, and replaced in the pool
            driver: Any = connection.connection.dbapi_connection
            driver.autocommit = True
            name = self._messages.channel.replace('"', '""')
            driver.execute(f'LISTEN "{name}"')
            self.is_listening = True
            self._wake()  # for rows that were inserted before
            probe_at = monotonic() + _PROBE_S
            while not self._stopping.is_set():
                for _ in driver.notifies(timeout=_LISTEN_SLICE_S):
                    self._wake()
                    probe_at = monotonic() + _PROBE_S
                if monotonic() >= probe_at:
                    self._probe(driver)
                    probe_at = monotonic() + _PROBE_S
                if driver.closed:
                    raise SQLAlchemyError("the connection that listens is closed")

    def _probe(self, driver: Any) -> None:
        """Test whether the connection is alive; meanwhile the clock wakes the relay."""
        self.is_listening = False
        driver.execute("")
        self.is_listening = True
