"""Transactional producers that take turns, and the one kafka_txn that is under way.

Back-to-back kafka_txns of one producer run into CONCURRENT_TRANSACTIONS (the markers of the last
one are still being written), so two or three producers take turns. Still strictly one kafka_txn
after the other: each commit is acknowledged before the next begins.
"""

from __future__ import annotations

from concurrent.futures import TimeoutError as NotDoneError  # its own on 3.10
from typing import TYPE_CHECKING

from halfbridge.bridge.errors import ConfigError
from halfbridge.checker.loop.blame import Batch
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import Transactor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfbridge.bridge.ports import Call, Ports, SideThread
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.checker.metrics import Metrics

# How often a commit that takes long is looked at: bounds how late a hung one is noticed.
LOOK_S = 0.5


class Turns:
    """Writes kafka_txns, one at a time; a large one commits while the caller goes on reading.

    Commits run in a thread of their own: sending offsets can block without limit when a broker
    goes away in the middle of it (librdkafka #5456). Such a call is left behind with its
    producer; a new producer of the same id fences it.

    Attributes:
        batch: See `Transactor`, of producers that are made from now on.
    """

    def __init__(
        self, config: CheckerConfig, id_prefix: str, metrics: Metrics, *, ports: Ports
    ) -> None:
        self._config = config
        self._id_prefix = id_prefix
        self._metrics = metrics
        self._ports = ports
        self._transactors: list[Transactor] = []
        self.batch = Batch.USUAL
        self._were_ready = False
        self._turn = 0
        self._under_way: Call | None = None
        self._committing: Transactor | None = None
        self._thread = self._new_thread()

    @property
    def are_ready(self) -> bool:
        """Whether all producers are there."""
        return len(self._transactors) == self._config.transactional_producers

    def start(self) -> None:
        """Make the producers that are missing.

        Raises:
            KafkaTxnFailedError: not now; try again.
        """
        while not self.are_ready:
            self._transactors.append(self._new(len(self._transactors)))
        self._were_ready = True

    def write(self, records: Iterable[Outgoing]) -> Mapping[int, int]:
        """Begin a kafka_txn and write `records`, in order; `commit` ends it.

        Returns:
            Once all copies have their offsets: half partition -> highest offset of a copy plus one.

        Raises:
            KafkaTxnFailedError: it did not happen.
        """
        transactor = self._transactors[self._turn]
        if transactor.worn:
            transactor = self._replace(self._turn)
        return transactor.write(records)

    def commit(
        self,
        offsets: Sequence[tuple[str, int, int, str]],
        membership: object,
        *,
        in_background: bool,
    ) -> None:
        """Commit what was written, together with offsets.

        Args:
            offsets: (topic, partition, offset, metadata).
            membership: From `Input`.
            in_background: Return before the commit is acknowledged; `is_done` tells.

        Raises:
            KafkaTxnFailedError: it did not happen, or may have happened.
        """
        self._committing = self._transactors[self._turn]
        self._under_way = self._thread.submit(self._committing.commit, offsets, membership)
        self._turn = (self._turn + 1) % len(self._transactors)
        while not in_background and not self.is_done(LOOK_S):
            pass

    @property
    def is_under_way(self) -> bool:
        """Whether a commit was left to the background and not asked for since."""
        return self._under_way is not None

    def is_done(self, timeout_s: float = 0) -> bool:
        """Tell whether the commit under way is acknowledged, waiting at most `timeout_s`.

        Raises:
            KafkaTxnFailedError: it did not happen, or may have happened.
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
            del under_way  # its error, this call and the producer would hold one another for ever
        return True

    def settle(self) -> bool:
        """Wait until no commit is under way; tell whether one was, and stands.

        After a failure no producer is kept: late requests of its kafka_txn may still arrive, and
        with the same epoch they would count for the next one (KAFKA-17754).
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
        """Let all producers go; `start` makes new ones, which fence whatever these left."""
        for transactor in self._transactors:
            transactor.close()
        self._transactors = []

    def close(self) -> None:
        """Wait for the commit under way and let everything go."""
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

    def _new(self, turn: int) -> Transactor:
        name = f"{self._id_prefix}-{turn}"
        try:
            transactor = Transactor(self._config, name, ports=self._ports, batch=self.batch)
        except ConfigError as error:
            if not self._were_ready:
                raise
            # It was right a moment ago: a certificate is being replaced, or threads are scarce.
            raise KafkaTxnFailedError(str(error)) from error
        transactor.start()
        return transactor

    def _replace(self, turn: int) -> Transactor:
        self._metrics.producer_replaced()
        self._transactors[turn].close()
        self._transactors[turn] = self._new(turn)
        return self._transactors[turn]

    def _new_thread(self) -> SideThread:
        return self._ports.run.side_thread("halfbridge-commit")
