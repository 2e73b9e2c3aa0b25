"""Runs a relay until it is stopped: its rounds, and its work in other threads.

An idle relay is woken by PostgreSQL's notifications, else by the clock.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from halfbridge.checker.status import Health
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import BridgeError
from halfbridge.serde.units import MS_PER_S
from halfbridge.sql.dialects import mend_pool
from halfbridge.sql.local_messages.dead_letters import DeadLetters, LetterReader
from halfbridge.sql.local_messages.marks import RowsLostError
from halfbridge.sql.local_messages.rows import DrainError
from halfbridge.sql.local_messages.settling import Settling, backlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Counter
    from sqlalchemy import Engine

    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.relay import Relay
    from halfbridge.sql.local_messages.settling import PreparedMessage
    from halfbridge.sql.local_messages.writer import LocalMessages

_LOG = logging.getLogger("halfbridge.sql")
_TROUBLES = (SQLAlchemyError, BridgeError)
# Waits after a failure of the database or of Kafka; they double.
_PAUSE_S_MIN = 0.1
_PAUSE_S_MAX = 5.0
_LETTERS_WAIT_S = 0.5
_LETTERS_PAUSE_S = 1.0  # after a failure
_LETTERS_COMMIT_S = 5.0  # if there are only dead letters of other groups
# Relays that start and stop make each other lose single rounds, but not so many in a row.
LOST_ROUNDS_MAX = 5
# Interval of counting the backlog, which reads the whole index.
_BACKLOG_S = 5.0
# Without a successful round for this time, beside the longest wait for rows, the relay is
# unhealthy. It covers two waits for an answer of the database (Bounds.answer_s), or one for half
# messages, one for COMMITs and one for the database.
ROUND_S_MAX = 60.0
# How long `run` waits for work under way after `stop`: longer than a wait for half messages
# (BridgeConfig.send_timeout_ms, 10 s).
DRAIN_S_MAX = 15.0
# How long closing the producer may take after that. With 2 s for its checkers these are 25 s of the
# 30 s after which Kubernetes kills. Checks decide what is left.
CLOSE_S_MAX = 8.0


class RelayService:
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
        self._relay = relay
        # The driver's own errors too: when SQLAlchemy sets or restores the isolation level of a
        # dead connection, it lets the driver's error pass.
        self._troubles = (*_TROUBLES, relay.engine.dialect.loaded_dbapi.Error)
        self._producer = producer
        self._settling = Settling(relay.messages, config, callback)
        self._letters = DeadLetters(
            relay.messages, relay.engine, relay.marks, relay.metrics, config
        )
        self._stopping = Event()
        self._listener = Listener(relay.messages, self._wake)
        self._wakeups = Wakeups(
            config.poll_ms_min, config.poll_ms_max, lambda: self._listener.is_listening
        )
        self._ills = Ills(relay.metrics.troubles, relay.engine)
        self._sick_places: dict[int, BridgeError] = {}
        self._is_ready = False
        self._tidy_at = 0.0
        self._round_s_max = round_s_max + config.poll_ms_max / MS_PER_S
        self._ended_at: float | None = None  # the last successful round, or the start
        self._failure: BaseException | None = None
        relay.metrics.round_age_s.set_function(self.round_age_s)

    def health(self) -> Health:
        """Return the present health."""
        ills = self._ills.present()
        age_s = self.round_age_s()
        if age_s > self._round_s_max:
            ills["rounds"] = f"none has ended well for {age_s:.0f} s, the last step: {self._step()}"
        reason = "; ".join(f"{what}: {text}" for what, text in sorted(ills.items()))
        if not self._is_ready and not reason:
            reason = "starting"
        return Health(self._is_ready, not reason or reason == "starting", reason)

    def stop(self) -> None:
        """Make `run` return after its current round. Thread-safe."""
        self._stopping.set()
        self._wakeups.wake()

    def round_age_s(self) -> float:
        """Return the time since the last successful round or the start; 0 before the start."""
        ended_at = self._ended_at
        return 0.0 if ended_at is None else monotonic() - ended_at

    def run(self, *, drain_s: float = DRAIN_S_MAX) -> None:
        """Relay until `stop`; then finish work under way, and release the buckets.

        Args:
            drain_s: Longest time for work under way after `stop`.

        Raises:
            DrainError: the work took longer, and continues in threads that end with the process.
                Nothing is lost: leases expire, and sent transactions are decided by the rows.
        """
        threads = {
            "rounds": Thread(target=self._run_to_the_end, name="halfbridge-relay", daemon=True),
            "dead letters": Thread(
                target=self._read_letters, name="halfbridge-dead-letters", daemon=True
            ),
            "settling": Thread(target=self._ask, name="halfbridge-settling", daemon=True),
        }
        self._ended_at = monotonic()
        self._listener.start()
        for thread in threads.values():
            thread.start()
        try:
            self._stopping.wait()
        finally:
            self.stop()
            threads["wake-ups"] = Thread(target=self._listener.stop, daemon=True)
            threads["wake-ups"].start()
            left = _join(threads, drain_s)
        if self._failure is not None:
            raise self._failure
        if left:
            text = f"{', '.join(left)} did not end in {drain_s:g} s"
            if "rounds" in left:
                text += f"; the last step: {self._step()}"
                _LOG.error("a relay ends without its last word, leases run out: %s", text)
            else:
                _LOG.error("a relay has ended its rounds, and leaves to the process: %s", text)
            raise DrainError(text)

    def _run_to_the_end(self) -> None:
        """Run rounds in their thread; after them stop the other work and release the buckets."""
        try:
            self._run_rounds()
        except BaseException as error:  # noqa: BLE001  (raised by `run`)
            self._failure = error
        self._stopping.set()  # first: `run` waits only so long for what follows
        try:
            self._relay.close()
        except BaseException as error:  # noqa: BLE001  (raised by `run`)
            self._failure = self._failure or error

    def _step(self) -> str:
        step = self._relay.step
        return "a look for rows" if step is None else step.value

    def _run_rounds(self) -> None:
        pause_s = _PAUSE_S_MIN
        while not self._stopping.is_set():
            self._wakeups.begin()
            try:
                has_worked = self._relay.round()
                if not has_worked:
                    self._relay.acknowledge()
                self._tidy()
            except self._troubles as error:
                self._ills.tell("relay", error)
                self._stopping.wait(pause_s)
                pause_s = min(_PAUSE_S_MAX, 2 * pause_s)
                continue
            pause_s = _PAUSE_S_MIN
            self._ended_at = monotonic()
            self._is_ready = True
            self._ills.well("relay")
            self._judge(self._relay.lost_rounds)
            self._judge_places()
            if has_worked:
                self._wakeups.worked()
            else:
                self._wakeups.wait()

    def _judge(self, lost_rounds: int) -> None:
        """Report several rounds in a row that have sent rows and could not mark them."""
        if lost_rounds < LOST_ROUNDS_MAX:
            self._ills.well("marks")
            return
        self._ills.tell(
            "marks",
            RowsLostError("round after round rows are sent that are not this relay's to mark"),
        )

    def _judge_places(self) -> None:
        """Report half partitions with failures, whose keys wait."""
        troubles = self._relay.troubles
        for place in sorted({*self._sick_places, *troubles}):
            what, error = f"half partition {place}", troubles.get(place)
            if error is None:
                self._ills.well(what)
            elif self._sick_places.get(place) is not error:
                self._ills.tell(what, error)
        self._sick_places = dict(troubles)

    def _tidy(self) -> None:
        """Withdraw unconfirmed rows, and repeat COMMITs of dead relays for rows without keys."""
        now = monotonic()
        if now < self._tidy_at:
            return
        self._tidy_at = now + self._relay.config.housekeeping_ms / MS_PER_S
        withdrawn = self._settling.withdraw()
        self._relay.metrics.withdrawn.inc(withdrawn)
        self._relay.repeat_orphans()

    def _ask(self) -> None:
        """Ask the callback, which may take long, and count the waiting rows."""
        next_count = 0.0
        while not self._stopping.wait(self._relay.config.housekeeping_ms / MS_PER_S):
            with self._ills.surviving("settling"):
                if self._settling.ask():
                    self._wake()
                if monotonic() >= next_count:
                    next_count = monotonic() + _BACKLOG_S
                    found = backlog(self._relay.messages)
                    self._relay.metrics.note_backlog(found.rows, found.oldest_age_ms)

    def _read_letters(self) -> None:
        while not self._stopping.is_set():
            with self._ills.surviving("dead letters"):
                self._take_letters()
            self._stopping.wait(_LETTERS_PAUSE_S)

    def _take_letters(self) -> None:
        """Take dead letters until `stop` or a failure, after which they are read again."""
        reader = LetterReader(self._producer.config, system_ports())
        commit_at = 0.0
        try:
            while not self._stopping.is_set():
                letters = reader.read(_LETTERS_WAIT_S)
                if sum(self._letters.take(letter) for letter in letters):
                    self._wake()
                # Also past dead letters of other groups; otherwise the lag would grow for ever.
                if letters or monotonic() >= commit_at:
                    reader.commit()
                    commit_at = monotonic() + _LETTERS_COMMIT_S
                self._ills.well("dead letters")
        finally:
            reader.close()

    def _wake(self) -> None:
        self._wakeups.wake()


def _join(threads: Mapping[str, Thread], seconds: float) -> list[str]:
    """Wait for all threads, `seconds` in all; return the names of those that have not ended."""
    deadline = monotonic() + seconds
    for thread in threads.values():
        thread.join(max(0.0, deadline - monotonic()))
    return [name for name, thread in threads.items() if thread.is_alive()]


_LISTEN_SLICE_S = 0.5  # how soon a listener notices that it must stop
_RECONNECT_S = 1.0  # meanwhile the clock wakes the relay
# After this time without a notification the connection is tested: through a dead connection no
# notification would ever come.
_PROBE_S = 10.0


class Wakeups:
    """Waits that grow while there is nothing to do. Only `wake` is thread-safe.

    Args:
        wait_ms_min: First wait.
        wait_ms_max: Longest wait.
        is_told: Tells whether notifications come, so that short waits are not needed.
    """

    def __init__(
        self, wait_ms_min: int, wait_ms_max: int, is_told: Callable[[], bool] = lambda: False
    ) -> None:
        self._event = Event()
        self._wait_ms_min, self._wait_ms_max = wait_ms_min, wait_ms_max
        self._wait_ms = wait_ms_min
        self._is_told = is_told

    def wake(self) -> None:
        """End the present wait, or the next one."""
        self._event.set()

    def begin(self) -> None:
        """Note that a look begins: only later calls of `wake` count."""
        self._event.clear()

    def worked(self) -> None:
        """Note that the look has found work."""
        self._wait_ms = self._wait_ms_min

    def wait(self) -> None:
        """Wait until `wake` is called, or up to a time that grows with each call."""
        wait_ms = self._wait_ms_max if self._is_told() else self._wait_ms
        self._wait_ms = min(self._wait_ms_max, 2 * self._wait_ms)
        if self._event.wait(wait_ms / 1_000):
            self._wait_ms = self._wait_ms_min


class Listener:
    """Listens to the notifications of the table's writers, on its own connection (PostgreSQL).

    A driver without notifications, or a server that is down, is no failure: meanwhile the clock
    wakes the relay.
    """

    def __init__(self, messages: LocalMessages, wake: Callable[[], object]) -> None:
        self._messages = messages
        self._wake = wake
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="halfbridge-listen", daemon=True)
        self.is_listening = False

    def start(self) -> None:
        """Begin to listen, if the database has notifications."""
        if self._messages.engine.dialect.name == "postgresql":
            self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
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


class Ills:
    """The parts of a relay that fail, each with its last error. Thread-safe.

    Args:
        troubles: Counts failures, by part.
        engine: The relay's engine, whose pool is replaced after an error of the driver that
            SQLAlchemy has not wrapped; see `mend_pool`.
    """

    def __init__(self, troubles: Counter, engine: Engine) -> None:
        self._troubles = troubles
        self._engine = engine
        self._ills: dict[str, str] = {}
        self._lock = Lock()

    def present(self) -> dict[str, str]:
        """Return part -> its last error, of the parts that fail."""
        with self._lock:
            return dict(self._ills)

    def tell(self, what: str, error: Exception) -> None:
        """Record that `what` failed: a warning for the first failure, debug lines for the next."""
        if isinstance(error, self._engine.dialect.loaded_dbapi.Error):
            mend_pool(self._engine)
        text = " ".join(str(error).split()) or type(error).__name__
        with self._lock:
            is_news = what not in self._ills
            self._ills[what] = text
        self._troubles.labels(what).inc()
        _LOG.log(logging.WARNING if is_news else logging.DEBUG, "%s: %s; again soon", what, text)

    def well(self, what: str) -> None:
        """Record that `what` works again."""
        if what in self._ills:
            with self._lock:
                self._ills.pop(what, None)

    @contextmanager
    def surviving(self, what: str) -> Iterator[None]:
        """Report any failure of the block, and its end, and continue.

        Other threads are joined only at the end, so an exception that ended one would stay unseen.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001  (told, and in health)
            self.tell(what, error)
        else:
            self.well(what)
