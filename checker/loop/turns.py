"""The transactional producers, which take turns, and the kafka_txn that is under way.

Consecutive kafka_txns of one producer meet CONCURRENT_TRANSACTIONS, while the markers of the last
kafka_txn are being written. So two or three producers take turns. There is still only one kafka_txn
at a time: each commit is acknowledged before the next kafka_txn begins.
"""

from __future__ import annotations

import logging
from concurrent.futures import TimeoutError as NotDoneError  # its own on 3.10
from typing import TYPE_CHECKING

from halfbridge.bridge.errors import ConfigError
from halfbridge.checker.loop.at_least_once import AtLeastOnce
from halfbridge.checker.loop.blame import Batch
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import Transactor
from halfbridge.serde.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfbridge.bridge.ports import Call, Ports, SideThread
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.checker.metrics import Metrics

_log = logging.getLogger("halfbridge.checker")

# Transactional ids of a turn beside its first one. A kafka_txn ends when each of its partitions has
# its marker. While a partition is away, the coordinator answers CONCURRENT_TRANSACTIONS to whoever
# wants the id. Then the kafka_txn is already decided, so a producer with another id cannot meet it:
# if it is to commit, its offsets are read as soon as they are stable (read_committed).
SPARE_IDS_MAX = 4
# Interval at which a slow commit is checked: bounds how late a hung call is noticed.
LOOK_S = 0.5


class Turns:
    """Writes kafka_txns, one at a time; a large one commits while the caller reads on.

    Commits run in a thread of their own, because sending offsets can block without limit if a
    broker disconnects during the call (librdkafka #5456). Such a call is left behind with its
    producer; a new producer of the same id fences it.

    Attributes:
        batch: See `Transactor`; a producer with another one is replaced before its next batch.
    """

    def __init__(
        self, config: CheckerConfig, id_prefix: str, metrics: Metrics, *, ports: Ports
    ) -> None:
        self._config = config
        self._id_prefix = id_prefix
        self._metrics = metrics
        self._ports = ports
        self._transactors: list[Transactor | AtLeastOnce] = []
        self.batch = Batch.USUAL
        self._were_ready = False
        self._spares = [0] * config.transactional_producers  # 0: the first id of the turn
        self._turn = 0
        self._under_way: Call | None = None
        self._committing: Transactor | AtLeastOnce | None = None
        self._thread = self._new_thread()

    @property
    def are_ready(self) -> bool:
        """Whether all producers exist."""
        return len(self._transactors) == self._config.transactional_producers

    def start(self) -> None:
        """Make the missing producers.

        Raises:
            KafkaTxnFailedError: not possible now; try again.
        """
        while not self.are_ready:
            self._transactors.append(self._new(len(self._transactors)))
        self._were_ready = True

    def write(self, records: Iterable[Outgoing]) -> Mapping[int, int]:
        """Begin a kafka_txn and write `records`, in order; `commit` ends it.

        Returns:
            Half partition -> highest offset of a copy plus one; all copies are acknowledged.

        Raises:
            KafkaTxnFailedError: the kafka_txn failed.
        """
        transactor = self._transactors[self._turn]
        if transactor.worn or transactor.batch is not self.batch:
            transactor = self._replace(self._turn)
        return transactor.write(records)

    def commit(
        self,
        offsets: Sequence[tuple[str, int, int, str]],
        membership: object,
        *,
        in_background: bool,
    ) -> None:
        """Commit the written records, together with offsets.

        Args:
            offsets: (topic, partition, offset, metadata).
            membership: From `Input`.
            in_background: Whether to return before the commit is acknowledged; see `is_done`.

        Raises:
            KafkaTxnFailedError: the kafka_txn failed, or its outcome is unknown.
        """
        self._committing = self._transactors[self._turn]
        self._under_way = self._thread.submit(self._committing.commit, offsets, membership)
        self._turn = (self._turn + 1) % len(self._transactors)
        while not in_background and not self.is_done(LOOK_S):
            pass

    @property
    def is_under_way(self) -> bool:
        """Whether a commit runs in the background, or its result was not taken yet."""
        return self._under_way is not None

    def is_done(self, timeout_s: float = 0) -> bool:
        """Tell whether the commit under way is acknowledged, waiting at most `timeout_s`.

        Raises:
            KafkaTxnFailedError: the kafka_txn failed, or its outcome is unknown.
        """
        under_way = self._under_way
        if under_way is None:
            return True
        if not under_way.done():
            try:
                under_way.exception(timeout_s)
            except NotDoneError:
                self._give_up_if_hung()
                return False
        self._under_way = self._committing = None
        try:
            under_way.result()
        finally:
            del under_way  # breaks the cycle of error, frame and producer
        return True

    def settle(self) -> bool:
        """Wait until no commit is under way; tell whether one was, and succeeded.

        After a failure all producers are dropped. Late requests of the failed kafka_txn may still
        arrive, and with the same epoch they would apply to the next kafka_txn (KAFKA-17754).
        """
        was_under_way = self.is_under_way
        try:
            while not self.is_done(LOOK_S):
                pass
        except KafkaTxnFailedError:
            self.discard()
            return False
        return was_under_way

    def discard(self) -> None:
        """Drop all producers; `start` makes new ones, which fence the old ones."""
        for transactor in self._transactors:
            transactor.close()
        self._transactors = []

    def close(self) -> None:
        """Wait for the commit under way and drop all producers."""
        self.settle()
        self._thread.leave()
        self.discard()

    def _give_up_if_hung(self) -> None:
        if self._committing is None or not self._committing.is_hung:
            return
        self._under_way = self._committing = None
        self._thread.leave()
        self._thread = self._new_thread()
        self.discard()
        self._metrics.producer_replaced()
        raise KafkaTxnFailedError("sending offsets does not return: left behind with its producer")

    def _new(self, turn: int) -> Transactor | AtLeastOnce:
        """Return the producer of a turn, under the first of its ids that is free."""
        for _ in range(SPARE_IDS_MAX):
            try:
                return self._started(turn)
            except KafkaTxnFailedError as error:  # noqa: PERF203 (each round waits for a broker)
                if not error.is_concurrent:
                    raise
                self._take_spare(turn)
        return self._started(turn)

    def _take_spare(self, turn: int) -> None:
        before = self._name(turn)
        self._spares[turn] = (self._spares[turn] + 1) % (SPARE_IDS_MAX + 1)
        self._metrics.spare_id_taken()
        _log.warning(
            "the last kafka_txn of transactional id %s has not ended, because a partition of it is"
            " away; going on with id %s",
            *(before, self._name(turn)),
        )

    def _name(self, turn: int) -> str:
        spare = self._spares[turn]
        return f"{self._id_prefix}-{turn}" + (f"-{spare}" if spare else "")

    def _started(self, turn: int) -> Transactor | AtLeastOnce:
        is_exact = self._config.delivery == Delivery.EXACTLY_ONCE
        outlet = Transactor if is_exact else AtLeastOnce
        try:
            transactor = outlet(self._config, self._name(turn), ports=self._ports, batch=self.batch)
        except ConfigError as error:
            if not self._were_ready:
                raise
            # For example while a certificate is being replaced, or the system has no threads.
            raise KafkaTxnFailedError(str(error)) from error
        transactor.start()
        return transactor

    def _replace(self, turn: int) -> Transactor | AtLeastOnce:
        self._metrics.producer_replaced()
        self._transactors[turn].close()
        self._transactors[turn] = self._new(turn)
        return self._transactors[turn]

    def _new_thread(self) -> SideThread:
        return self._ports.run.side_thread("halfbridge-commit")
