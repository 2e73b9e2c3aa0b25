"""Waits for brokers, so that a slow half partition does not delay the other ones.

If the leader of a half partition is down or slow, its batch is left under way, and the other
batches of the round continue. While a batch is under way in a half partition, and for some time
after one has failed there, no other batch is begun there.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.kafka.errors import BridgeError
from halfbridge.serde.units import MS_PER_S
from halfbridge.sql.local_messages.sending import abandon

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.bridge.futures import DecisionFuture
    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.sending import Attempt, Sending

_LOG = logging.getLogger("halfbridge.sql")
# How long a round waits for one half partition while others could continue. Acknowledgements take
# milliseconds, the election of a leader takes seconds, and a check must not come in between.
PATIENCE_S = 0.5
# How long a round waits if only late batches of earlier rounds are under way.
_LATE_SLICE_S = 0.05
# How long a half partition rests after a failure; the time doubles.
REST_S_MIN, REST_S_MAX = 1.0, 30.0


class Decision(NamedTuple):
    """A COMMIT under way.

    Attributes:
        transaction_id: Id of the message transaction.
        half_partition: Its half partition.
        future: Future of the COMMIT.
        rows: Number of rows to count once it is acknowledged; 0 for a repetition.
        began: When the COMMIT was sent, by the monotonic clock.
    """

    transaction_id: str
    half_partition: int
    future: DecisionFuture
    rows: int
    began: float

    def waits_for(self) -> Sequence[DecisionFuture]:
        """Return the future that must be done first."""
        return (self.future,)


class _Rest(NamedTuple):
    until: float
    rest_s: float


class UnderWay:
    """Half messages and COMMITs of one relay that brokers have not acknowledged. Not thread-safe.

    Args:
        producer: The relay's producer; its settings limit the waits.

    Attributes:
        troubles: Half partition -> the last failure there, until a success there.
    """

    def __init__(self, producer: TransactionProducer) -> None:
        self.troubles: dict[int, BridgeError] = {}
        self._producer = producer
        self._sendings: list[Sending] = []
        self._decisions: list[Decision] = []
        self._rests: dict[int, _Rest] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether anything is under way."""
        return bool(self._sendings or self._decisions)

    @property
    def deciding(self) -> set[str]:
        """Transactions whose COMMIT is under way."""
        return {each.transaction_id for each in self._decisions}

    def resting(self) -> set[int]:
        """Return the half partitions that rest after a failure."""
        now = monotonic()
        return {place for place, rest in self._rests.items() if now < rest.until}

    def busy(self) -> set[int]:
        """Return the half partitions in which no batch may be begun now."""
        sending = {each.half_partition for each in self._sendings}
        return sending | {each.half_partition for each in self._decisions} | self.resting()

    def await_sendings(self, begun: Sequence[Sending]) -> list[list[Attempt]]:
        """Wait for half messages; return the durable batches, of earlier rounds too.

        Returns:
            Groups of attempts to mark together: those of `begun`, then each late attempt alone. A
            check may have rolled back a late attempt, and only that attempt is then undone.
        """
        if not (begun or self._sendings):
            return []
        self._wait(begun, self._sendings)
        late, self._sendings = self._sendings, []
        groups = [self._durable(begun), *(self._durable([each]) for each in late)]
        return [group for group in groups if group]

    def await_now(self, begun: Sequence[Sending], *, is_patient: bool) -> list[Attempt]:
        """Wait for half messages; return the durable batches, and give up the others.

        Args:
            begun: Batches of this round. The check rolls back batches that are given up.
            is_patient: Whether to wait up to the limit, because no other half partition can go on.
        """
        timeout_s = self._producer.config.send_timeout_ms / MS_PER_S
        _wait_all(begun, timeout_s if is_patient else PATIENCE_S)
        return [attempt for each in begun for attempt in self._attempted(each)]

    def await_decisions(self, begun: Sequence[Decision]) -> list[Decision]:
        """Wait for COMMITs; return the acknowledged ones, of earlier rounds too."""
        if not (begun or self._decisions):
            return []
        self._wait(begun, self._decisions)
        found: list[Decision] = []
        left: list[Decision] = []
        timeout_s = self._producer.config.decision_timeout_ms / MS_PER_S
        for each in (*self._decisions, *begun):
            if not each.future.done() and monotonic() < each.began + timeout_s:
                left.append(each)
                continue
            try:
                each.future.result(0)
            except BridgeError as error:
                _LOG.warning("COMMIT of %s is in doubt: %s", each.transaction_id, error)
                self._failed(each.half_partition, error)
            else:
                found.append(each)
                self._succeeded(each.half_partition)
        self._decisions = left
        return found

    def _durable(self, sendings: Iterable[Sending]) -> list[Attempt]:
        """Return the durable batches; unfinished ones stay under way.

        A batch older than send_timeout_ms is rolled back: its first check is near or past.
        """
        timeout_s = self._producer.config.send_timeout_ms / MS_PER_S
        attempts: list[Attempt] = []
        for each in sendings:
            is_old = monotonic() >= each.began + timeout_s
            if each.is_done or is_old:
                durable = self._attempted(each)
                if is_old:
                    abandon(durable)
                else:
                    attempts += durable
            else:
                self._sendings.append(each)
        return attempts

    def _attempted(self, sending: Sending) -> list[Attempt]:
        """Return the attempt of a finished batch; empty if the batch has failed."""
        try:
            attempt = sending.attempt()
        except BridgeError as error:
            self._failed(sending.half_partition, error)
            return []
        self._succeeded(sending.half_partition)
        return [attempt]

    def _wait(self, mine: Sequence[Sending | Decision], late: Sequence[Sending | Decision]) -> None:
        """Wait for `mine` up to PATIENCE_S; if there is only `late`, wait for a moment."""
        on_trial = [each for each in mine if each.half_partition in self.troubles]
        prompt = [each for each in mine if each.half_partition not in self.troubles]
        _wait_all(prompt, PATIENCE_S)
        if not prompt:
            _wait_all([*late, *on_trial], _LATE_SLICE_S)

    def _failed(self, place: int, error: BridgeError) -> None:
        before = self._rests.get(place)
        rest_s = REST_S_MIN if before is None else min(REST_S_MAX, 2 * before.rest_s)
        self._rests[place] = _Rest(monotonic() + rest_s, rest_s)
        self.troubles[place] = error

    def _succeeded(self, place: int) -> None:
        if place in self.troubles:
            del self._rests[place], self.troubles[place]


def _wait_all(begun: Iterable[Sending | Decision], seconds: float) -> None:
    deadline = monotonic() + seconds
    for each in begun:
        for future in each.waits_for():
            if not future.wait(max(0.0, deadline - monotonic())):
                return
