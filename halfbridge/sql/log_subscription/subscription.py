"""A relay that turns the inserts into a user's table into messages, each exactly once.

The relay does not write to the table. For each batch it sends half messages, commits one database
transaction with the fence row and the new position, sends the COMMIT, and later records that the
COMMIT is acknowledged. If the relay dies in between, the next relay reads the subscription's row:

- Inserts after the position are sent again. The check rolls the dead relay's half messages back.
- If the acknowledgement is not recorded, the COMMIT is repeated before anything else is sent.

All message transactions of a subscription use one half partition, so that messages are delivered in
the order of the log.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.batches import MESSAGES_MAX, cut
from halfbridge.sql.log_subscription.changes import Position
from halfbridge.sql.log_subscription.claims import Claims
from halfbridge.sql.log_subscription.errors import (
    PASSING,
    OtherGroupError,
    PositionLostError,
    PositionMissingError,
    PositionTakenError,
    ReadingStoppedError,
)
from halfbridge.sql.log_subscription.progress import BeginAt, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from threading import Event

    from halfbridge.bridge import Message, TransactionProducer
    from halfbridge.sql.fence import Fence
    from halfbridge.sql.log_subscription.changes import Insert, LogSource, Snapshot, Wanted
    from halfbridge.sql.log_subscription.errors import LogSubscriptionError
    from halfbridge.sql.log_subscription.mapping import MessageMapping
    from halfbridge.sql.log_subscription.positions import Positions
    from halfbridge.sql.log_subscription.stored import Stored

_LOG = logging.getLogger("halfbridge.sql")
# How long one read of the log waits. A stop is noticed within this time.
_READ_TIMEOUT_S = 0.5
# How often the position follows a log without inserts, so that the server can remove the log. Not
# more often, because each such move writes a row, and so adds to the log.
_PROGRESS_INTERVAL_S = 60.0
_BACK_OFF_S_MIN, _BACK_OFF_S_MAX = 0.1, 10.0


class LogSubscription:
    """Relays one table. Not thread-safe; `run` is called once.

    Args:
        producer: A started producer with `fence.check` as its checker. Its producer group may be
            shared by subscriptions with the same fence.
        fence: A fence in the database of the positions.
        positions: The tables of positions, which must exist.
        source: The table's log.
        mapping: Turns a row into a message.
        name: Name of the subscription.
        begin_at: Where the subscription begins if it has no position; None: an error in that case.
            An operator must remove a subscription with a lost position first (`removal`).
        progress_interval_s: How often the position follows a log without inserts.
        on_step: Called with the name of each step, for tests.
    """

    def __init__(
        self,
        *,
        producer: TransactionProducer,
        fence: Fence,
        positions: Positions,
        source: LogSource,
        mapping: MessageMapping,
        name: str,
        begin_at: BeginAt | None = None,
        progress_interval_s: float = _PROGRESS_INTERVAL_S,
        on_step: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self.progress = Progress()
        self._positions = positions
        self._group = fence.producer_group
        self._claims = Claims(producer, fence, positions, name=name, on_step=self._did)
        self._source = source
        self._mapping = mapping
        self._name = name
        self._begin_at = begin_at
        self._progress_interval_s = progress_interval_s
        self._told = on_step
        self._read_ahead: list[tuple[Insert, Message]] = []
        self._progress_due_s = 0.0
        self._back_off_s = _BACK_OFF_S_MIN

    def run(self, stop: Event) -> None:
        """Relay until `stop` is set; return between two batches of at most MESSAGES_MAX.

        If `stop` is set while a snapshot is staged, this method returns between two rows, and the
        subscription has not begun.

        Raises:
            PositionLostError, PositionMissingError: An operator chooses where to begin.
            LogSettingsError, UnreadableChangeError, InsertNotMappedError: As in their docstrings.
            BridgeError: An error that does not pass by itself: a topic, a right, or a message that
                is too large.
        """
        try:
            while not stop.is_set():
                self._run_until(stop)
        finally:
            self._source.close()

    def _run_until(self, stop: Event) -> None:
        """Relay until `stop` is set or an error occurs that passes; after an error, back off."""
        try:
            self._open(stop)
            while not stop.is_set():
                self._turn()
                self.progress.note("read")
                self._back_off_s, self.progress.last_error = _BACK_OFF_S_MIN, ""
            self._claims.note_decision()
        except ReadingStoppedError:
            return
        except PASSING as error:
            self.progress.is_open = False
            self.progress.retries += 1
            self.progress.last_error = " ".join(str(error).split())
            _LOG.warning("subscription %s begins again: %s", self._name, self.progress.last_error)
            self._source.close()
            self._did("failed")
            stop.wait(self._back_off_s)
            self._back_off_s = min(2 * self._back_off_s, _BACK_OFF_S_MAX)

    def _did(self, step: str) -> None:
        self.progress.note(step)
        self._told(step)

    def _open(self, stop: Event) -> None:
        """Read the row, repeat an open COMMIT, send staged rows, and open the log.

        Returns without opening the log when `stop` is set.
        """
        self.progress.note("opening")
        self._read_ahead.clear()
        self._claims.settle()
        stored = self._positions.read(self._name)
        if stored is None:
            stored = self._begin(stop)
        if stored.producer_group != self._group:
            raise OtherGroupError(
                field="producer_group",
                value=self._group,
                origin="the relay",
                allowed=f"{stored.producer_group}, which has subscription {self._name}; or give "
                "--subscription another name",
            )
        self._claims.take(stored)
        self._claims.repeat_commit()
        while (staged_after := self._claims.row.staged_after) is not None:
            if stop.is_set():
                return
            self._relay_staged(self._claims.row, staged_after)
        try:
            self._source.open(self._claims.row.position)
        except PositionLostError as error:
            raise self._lost(error) from error
        self.progress.is_open = True
        self._progress_due_s = monotonic() + self._progress_interval_s

    def _begin(self, stop: Event) -> Stored:
        is_wanted = lambda: not stop.is_set()  # noqa: E731  (used twice here)
        self.progress.note("beginning")
        with self._positions.beginning(self._name):
            stored = self._positions.read(self._name)
            if stored is not None:
                return stored  # another relay has begun the subscription
            if self._begin_at is None:
                raise PositionMissingError(
                    f"subscription {self._name} has no position; begin it with --begin-at now or "
                    "--begin-at snapshot"
                )
            if self._begin_at is BeginAt.NOW:
                stored = self._begun(self._source.begin_now(is_wanted))
            else:
                with (
                    self._source.begin_snapshot(is_wanted) as snapshot,
                    closing(self._messages(snapshot, is_wanted)) as messages,
                ):
                    stored = self._begun(snapshot.position, messages)
        _LOG.info("subscription %s begins at %s", self._name, stored.position.commit)
        self._did("begun")
        return stored

    def _begun(self, position: Position, messages: Iterable[Message] = ()) -> Stored:
        return self._positions.begin(self._name, position, messages, producer_group=self._group)

    def _messages(self, snapshot: Snapshot, is_wanted: Wanted) -> Generator[Message, None, None]:
        """Yield the messages of a snapshot's rows."""
        with closing(snapshot.rows()) as rows:
            for row in rows:
                if not is_wanted():
                    raise ReadingStoppedError("stopped while a snapshot was staged")
                yield self._mapping.message(row)
                self._did("staged")

    def _turn(self) -> None:
        """Read more inserts, and relay one batch of them."""
        while len(self._read_ahead) < MESSAGES_MAX:
            found = self._read(0.0 if self._read_ahead else _READ_TIMEOUT_S)
            if not found:
                break
            self._read_ahead += [(each, self._mapping.message(each.values)) for each in found]
        count = cut(
            [message for _, message in self._read_ahead],
            [insert.ends_transaction for insert, _ in self._read_ahead],
        )
        if count:
            batch, self._read_ahead = self._read_ahead[:count], self._read_ahead[count:]
            before = self._claims.row
            after = replace(before, position=batch[-1][0].position)
            self._deliver([message for _, message in batch], after)
            self._source.advance(self._claims.row.position.commit)
            self._did("advanced")
        elif not self._read_ahead:
            self._idle()
        else:
            self._read_ahead += [
                (each, self._mapping.message(each.values)) for each in self._read(_READ_TIMEOUT_S)
            ]

    def _read(self, timeout_s: float) -> tuple[Insert, ...]:
        try:
            return self._source.read(MESSAGES_MAX - len(self._read_ahead), timeout_s)
        except PositionLostError as error:
            raise self._lost(error) from error

    def _relay_staged(self, before: Stored, after_number: int) -> None:
        rows = self._positions.staged(self._name, after_number, MESSAGES_MAX)
        messages = [message for _, message in rows]
        count = cut(messages, [True] * len(messages))
        if not count:
            self._claims.move(replace(before, staged_after=None))
            return
        self._deliver(messages[:count], replace(before, staged_after=rows[count - 1][0]))

    def _deliver(self, messages: Sequence[Message], after: Stored) -> None:
        self._claims.deliver(messages, after)
        self.progress.messages += len(messages)
        self.progress.batches += 1

    def _idle(self) -> None:
        """Record the last decision; let the position follow the log when that is due."""
        self._claims.note_decision()
        if monotonic() < self._progress_due_s:
            return
        self._progress_due_s = monotonic() + self._progress_interval_s
        before, read_to = self._claims.row, self._source.read_to
        try:
            self._source.check_table()  # after the read: covers all that the position passes
        except PositionLostError as error:
            raise self._lost(error) from error
        # In the middle of a database transaction the position must not move.
        if before.position.inserts == 0 and read_to != before.position.commit:
            self._claims.move(replace(before, position=Position(read_to)))
            self._source.advance(read_to)
            self._did("followed")

    def _lost(self, error: PositionLostError) -> LogSubscriptionError:
        """Return the error for an operator, or one that passes if the row has moved since."""
        row = self._claims.row
        stored = self._positions.read(self._name)
        if stored is None or stored.version != row.version:
            # Another relay moves the log behind its own row: the log has left the old row only.
            return PositionTakenError(
                f"another relay has moved the row from {row.position.commit}: {error}"
            )
        return type(error)(
            f"subscription {self._name} is lost at {row.position.commit}: {error}. Later inserts "
            "may be missing. Look for them, then remove the subscription (halfbridge relay "
            "remove) and choose where to begin: --begin-at now or --begin-at snapshot",
            subscription=self._name,
            position=row.position.commit,
        )
