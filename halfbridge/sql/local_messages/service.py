"""A relay that runs: its rounds, and what goes on beside them, until it is stopped."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from halfbridge.bridge.errors import BridgeError
from halfbridge.bridge.kafka import system_ports
from halfbridge.checker.status import Health
from halfbridge.sql.local_messages.dead_letters import DeadLetters
from halfbridge.sql.local_messages.errors import DrainError
from halfbridge.sql.local_messages.letter_reader import LetterReader
from halfbridge.sql.local_messages.marks import RowsLostError
from halfbridge.sql.local_messages.settling import Settling, backlog
from halfbridge.sql.local_messages.wakeups import Listener, Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.relay import Relay
    from halfbridge.sql.local_messages.settling import PreparedMessage
    from halfbridge.sql.log_subscription.wakeups import LogListener

_LOG = logging.getLogger("halfbridge.sql")
_MS_PER_S = 1_000
_TROUBLES = (SQLAlchemyError, BridgeError)
# Waits after a failure of the database or of Kafka; they double.
_PAUSE_S_MIN = 0.1
_PAUSE_S_MAX = 5.0
_LETTERS_WAIT_S = 0.5
_LETTERS_PAUSE_S = 1.0  # after a failure
_LETTERS_COMMIT_S = 5.0  # where there are only other groups' letters
# Relays that come and go cost each other a round now and then, and not so many in a row.
LOST_ROUNDS_MAX = 5
# Counting a long backlog reads all of its index.
_BACKLOG_S = 5.0
# After this long without a round that ended well, beside the longest wait for rows, health says so:
# two waits for an answer of the database (Bounds.answer_s), or one for half messages, one for
# COMMITs and one for the database.
ROUND_S_MAX = 60.0
# How long `run` waits for what is begun, once it is to stop: longer than a wait for half messages
# (BridgeConfig.send_timeout_ms, 10 s).
DRAIN_S_MAX = 15.0
# How long the producer is waited for after that. With its checkers' 2 s it makes 25 s, of the 30 s
# after which Kubernetes kills; what is left by then, checks decide.
CLOSE_S_MAX = 8.0


class RelayService:
    """Runs a relay until `stop`. Not to be run twice.

    Args:
        relay: Runs in the thread that calls `run`.
        producer: The relay's.
        callback: For prepared rows; see Settling. It runs in a thread of its own.
        by_log: Have the database's log say when rows were inserted, in place of notifications.
        round_s_max: How long no round may end well before health says so, seconds.

    Raises:
        LogSettingsError: `by_log`, and this kind of database has no log that can be read.
    """

    def __init__(
        self,
        relay: Relay,
        producer: TransactionProducer,
        *,
        callback: Callable[[PreparedMessage], bool | None] | None = None,
        by_log: bool = False,
        round_s_max: float = ROUND_S_MAX,
    ) -> None:
        config = relay.config
        self._relay = relay
        # The driver's own: a connection that died in the pool raises it where SQLAlchemy sets the
        # isolation level, and SQLAlchemy lets it pass.
        self._troubles = (*_TROUBLES, relay.engine.dialect.loaded_dbapi.Error)
        self._producer = producer
        self._settling = Settling(relay.messages, config, callback)
        self._letters = DeadLetters(
            relay.messages, relay.engine, relay.marks, relay.metrics, config
        )
        self._stopping = Event()
        self._listener = self._log_listener() if by_log else Listener(relay.messages, self._wake)
        self._wakeups = Wakeups(
            config.poll_ms_min, config.poll_ms_max, lambda: self._listener.is_listening
        )
        self._ills: dict[str, str] = {}
        self._ills_lock = Lock()
        self._sick_places: dict[int, BridgeError] = {}
        self._is_ready = False
        self._tidy_at = 0.0
        self._round_s_max = round_s_max + config.poll_ms_max / _MS_PER_S
        self._ended_at: float | None = None  # the last round that ended well, or the begin
        self._failure: BaseException | None = None
        relay.metrics.round_age_s.set_function(self.round_age_s)

    def health(self) -> Health:
        """Return the health of this moment."""
        with self._ills_lock:
            ills = dict(self._ills)
        age_s = self.round_age_s()
        if age_s > self._round_s_max:
            ills["rounds"] = f"none has ended well for {age_s:.0f} s, the last step: {self._step()}"
        reason = "; ".join(f"{what}: {text}" for what, text in sorted(ills.items()))
        if not self._is_ready and not reason:
            reason = "starting"
        return Health(self._is_ready, not reason or reason == "starting", reason)

    def stop(self) -> None:
        """Have `run` finish its round and return. Thread-safe."""
        self._stopping.set()
        self._wakeups.wake()

    def round_age_s(self) -> float:
        """Return how long ago a round ended well, or the relay began; 0 before that."""
        ended_at = self._ended_at
        return 0.0 if ended_at is None else monotonic() - ended_at

    def run(self, *, drain_s: float = DRAIN_S_MAX) -> None:
        """Relay until `stop`; what is begun is finished, and buckets are left to others.

        Args:
            drain_s: How long what is begun may take then.

        Raises:
            DrainError: it took longer, and goes on in threads that end with the process. Nothing
                is lost: where the rounds did not end, leases run out, and what was sent is decided
                by the rows.
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
        """Run rounds in their thread; what ends them ends the relay, and leaves its buckets."""
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

    def _log_listener(self) -> LogListener:
        # Late: what reads a log needs more than what writes a table.
        from halfbridge.sql.log_subscription.wakeups import LogListener  # noqa: PLC0415

        table = self._relay.messages.tables.messages
        engine = self._relay.engine
        return LogListener(engine, table=table.name, schema=table.schema, wake=self._wake)

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
                self._tell("relay", error)
                self._stopping.wait(pause_s)
                pause_s = min(_PAUSE_S_MAX, 2 * pause_s)
                continue
            pause_s = _PAUSE_S_MIN
            self._ended_at = monotonic()
            self._is_ready = True
            self._well("relay")
            self._judge(self._relay.lost_rounds)
            self._judge_places()
            if has_worked:
                self._wakeups.worked()
            else:
                self._wakeups.wait()

    def _judge(self, lost_rounds: int) -> None:
        """Tell of rounds that sent and could not mark, one after the other."""
        if lost_rounds < LOST_ROUNDS_MAX:
            self._well("marks")
            return
        self._tell(
            "marks",
            RowsLostError("round after round rows are sent that are not this relay's to mark"),
        )

    def _judge_places(self) -> None:
        """Tell of half partitions that keep their keys waiting, and of the others nothing."""
        troubles = self._relay.troubles
        for place in sorted({*self._sick_places, *troubles}):
            what, error = f"half partition {place}", troubles.get(place)
            if error is None:
                self._well(what)
            elif self._sick_places.get(place) is not error:
                self._tell(what, error)
        self._sick_places = dict(troubles)

    def _tidy(self) -> None:
        """Withdraw what nobody confirmed, and end what a dead relay left without a key."""
        now = monotonic()
        if now < self._tidy_at:
            return
        self._tidy_at = now + self._relay.config.housekeeping_ms / _MS_PER_S
        withdrawn = self._settling.withdraw()
        self._relay.metrics.withdrawn.inc(withdrawn)
        self._relay.repeat_orphans()

    def _ask(self) -> None:
        """Ask the callback, and count what waits; a callback may take its time."""
        next_count = 0.0
        while not self._stopping.wait(self._relay.config.housekeeping_ms / _MS_PER_S):
            with self._surviving("settling"):
                if self._settling.ask():
                    self._wake()
                if monotonic() >= next_count:
                    next_count = monotonic() + _BACKLOG_S
                    found = backlog(self._relay.messages)
                    self._relay.metrics.note_backlog(found.rows, found.oldest_age_ms)

    def _read_letters(self) -> None:
        while not self._stopping.is_set():
            with self._surviving("dead letters"):
                self._take_letters()
            self._stopping.wait(_LETTERS_PAUSE_S)

    def _take_letters(self) -> None:
        """Take dead letters until the end, or until something fails: then they are read again."""
        reader = LetterReader(self._producer.config, system_ports())
        commit_at = 0.0
        try:
            while not self._stopping.is_set():
                letters = reader.read(_LETTERS_WAIT_S)
                if sum(self._letters.take(letter) for letter in letters):
                    self._wake()
                # Behind others' letters too, or the group would seem to lag for ever.
                if letters or monotonic() >= commit_at:
                    reader.commit()
                    commit_at = monotonic() + _LETTERS_COMMIT_S
                self._well("dead letters")
        finally:
            reader.close()

    def _wake(self) -> None:
        self._wakeups.wake()

    @contextmanager
    def _surviving(self, what: str) -> Iterator[None]:
        """Tell of a failure, whatever it is, and of its end; go on.

        Nobody joins a thread beside before the end, so what ended the thread would not be told.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001  (told, and in health)
            self._tell(what, error)
        else:
            self._well(what)

    def _tell(self, what: str, error: Exception) -> None:
        text = " ".join(str(error).split()) or type(error).__name__
        with self._ills_lock:
            is_news = what not in self._ills
            self._ills[what] = text
        self._relay.metrics.troubles.labels(what).inc()
        _LOG.log(logging.WARNING if is_news else logging.DEBUG, "%s: %s; again soon", what, text)

    def _well(self, what: str) -> None:
        if what in self._ills:
            with self._ills_lock:
                self._ills.pop(what, None)


def _join(threads: Mapping[str, Thread], seconds: float) -> list[str]:
    """Wait for threads, all in all this long; return the names of those that have not ended."""
    deadline = monotonic() + seconds
    for thread in threads.values():
        thread.join(max(0.0, deadline - monotonic()))
    return [name for name, thread in threads.items() if thread.is_alive()]
