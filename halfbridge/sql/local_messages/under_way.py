"""What waits for a broker, by half partition: one that waits for long keeps no other one waiting.

A half partition whose leader is gone, or slow, has its batch left under way, and other batches of
the round go on. While a batch is under way in a half partition, or after one has failed there, no
other batch is begun in this half partition.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.bridge.errors import BridgeError
from halfbridge.sql.local_messages.sending import abandon

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.bridge.futures import DecisionFuture
    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.sending import Attempt, Sending

_MS_PER_S = 1_000
_LOG = logging.getLogger("halfbridge.sql")
# How long a round waits for one half partition while others could go on. Acknowledgements take
# milliseconds, and a leader that is elected anew seconds; a check must not come in between.
PATIENCE_S = 0.5
# How long a round waits where nothing but what is late is under way.
_LATE_SLICE_S = 0.05
# How long a half partition in which something has failed rests; it doubles.
REST_S_MIN, REST_S_MAX = 1.0, 30.0


class Decision(NamedTuple):
    """A COMMIT on its way.

    Attributes:
        transaction_id: Of which message transaction.
        half_partition: Where.
        future: Tells of its end.
        rows: How many rows it counts for, once acknowledged; 0 for one that is repeated.
        began: When it was sent, by the monotonic clock.
    """

    transaction_id: str
    half_partition: int
    future: DecisionFuture
    rows: int
    began: float

    def waits_for(self) -> Sequence[DecisionFuture]:
        """Return what has to be done first."""
        return (self.future,)


class _Rest(NamedTuple):
    until: float
    rest_s: float


class UnderWay:
    """Half messages and COMMITs of one relay that brokers have not acknowledged. Not thread-safe.

    Args:
        producer: Of the relay; its config says how long half messages and COMMITs may take.

    Attributes:
        troubles: Half partition -> what failed there last, until something succeeds there.
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
        """Return half partitions in which something has failed lately."""
        now = monotonic()
        return {place for place, rest in self._rests.items() if now < rest.until}

    def busy(self) -> set[int]:
        """Return half partitions in which nothing may be begun now."""
        sending = {each.half_partition for each in self._sendings}
        return sending | {each.half_partition for each in self._decisions} | self.resting()

    def await_sendings(self, begun: Sequence[Sending]) -> list[list[Attempt]]:
        """Wait for half messages; return what is durable, of earlier rounds too.

        Returns:
            What is to be marked together: the attempts of `begun`, then each late one alone. A
            check may have rolled back a late one, and only that one is then undone.
        """
        if not (begun or self._sendings):
            return []
        self._wait(begun, self._sendings)
        late, self._sendings = self._sendings, []
        groups = [self._durable(begun), *(self._durable([each]) for each in late)]
        return [group for group in groups if group]

    def await_now(self, begun: Sequence[Sending], *, is_patient: bool) -> list[Attempt]:
        """Wait for half messages; return what is durable, and give up the others.

        Args:
            begun: Of this round. The check rolls back what is given up.
            is_patient: Wait as long as one may, since no other half partition would do better.
        """
        timeout_s = self._producer.config.send_timeout_ms / _MS_PER_S
        _wait_all(begun, timeout_s if is_patient else PATIENCE_S)
        return [attempt for each in begun for attempt in self._attempted(each)]

    def await_decisions(self, begun: Sequence[Decision]) -> list[Decision]:
        """Wait for COMMITs; return those that are acknowledged, of earlier rounds too."""
        if not (begun or self._decisions):
            return []
        self._wait(begun, self._decisions)
        found: list[Decision] = []
        left: list[Decision] = []
        timeout_s = self._producer.config.decision_timeout_ms / _MS_PER_S
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
        """Return what is durable in time; what is not done stays under way."""
        timeout_s = self._producer.config.send_timeout_ms / _MS_PER_S
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
        """Return what has become of half messages that nobody waits for any more."""
        try:
            attempt = sending.attempt()
        except BridgeError as error:
            self._failed(sending.half_partition, error)
            return []
        self._succeeded(sending.half_partition)
        return [attempt]

    def _wait(self, mine: Sequence[Sending | Decision], late: Sequence[Sending | Decision]) -> None:
        """Wait for what is begun now; no longer than others can bear, and for late ones hardly."""
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
