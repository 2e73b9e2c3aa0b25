"""Transactional producers that take turns, and the one kafka_txn that is under way.

Back-to-back kafka_txns of one producer run into CONCURRENT_TRANSACTIONS (the markers of the last
one are still being written), so two or three producers take turns. Still strictly one kafka_txn
after the other: each commit is acknowledged before the next begins.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from checker.outlet.kafka_io import Transactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from checker.config import CheckerConfig
    from checker.metrics import Metrics
    from checker.publish import Outgoing


class Turns:
    """Writes kafka_txns, one at a time; a large one commits while the caller goes on reading."""

    def __init__(self, config: CheckerConfig, id_prefix: str, metrics: Metrics) -> None:
        self._config = config
        self._id_prefix = id_prefix
        self._metrics = metrics
        self._transactors: list[Transactor] = []
        self._turn = 0
        self._under_way: Future[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="halfbridge-commit")

    def start(self) -> None:
        """Make the producers that are missing.

        Raises:
            KafkaTxnFailedError: not now; try again.
        """
        while len(self._transactors) < self._config.transactional_producers:
            self._transactors.append(self._new(len(self._transactors)))

    def run(
        self,
        records: Iterable[Outgoing],
        offsets: Callable[[Mapping[int, int]], Sequence[tuple[str, int, int, str]]],
        group_metadata: Any,
        *,
        watched: bool,
        in_background: bool,
    ) -> None:
        """Write `records` and commit offsets in one kafka_txn.

        Args:
            records: What to write, in order.
            offsets: Called once all copies have their offsets (half partition -> highest offset
                plus one); returns (topic, partition, offset, metadata).
            group_metadata: From `Input`.
            watched: Find out which record a broker refuses.
            in_background: Return before the commit is acknowledged; `is_done` tells.

        Raises:
            KafkaTxnFailedError: it did not happen, or may have happened; see its kind.
        """
        transactor = self._transactors[self._turn]
        if transactor.worn:
            transactor = self._replace(self._turn)
        positions = offsets(transactor.write(records, watched=watched))
        if in_background:
            self._under_way = self._thread.submit(transactor.commit, positions, group_metadata)
        else:
            transactor.commit(positions, group_metadata)
        self._turn = (self._turn + 1) % len(self._transactors)

    @property
    def is_under_way(self) -> bool:
        """Whether a commit was left to the background and not asked for since."""
        return self._under_way is not None

    def is_done(self, timeout_s: float = 0) -> bool:
        """Tell whether the commit under way is acknowledged, waiting at most `timeout_s`.

        Raises:
            KafkaTxnFailedError: it did not happen, or may have happened; see its kind.
        """
        under_way = self._under_way
        if under_way is None:
            return True
        if not under_way.done() and not (timeout_s and wait((under_way,), timeout_s).done):
            return False
        self._under_way = None
        under_way.result()
        return True

    def settle(self) -> None:
        """Wait until no commit is under way, whatever its outcome: all is read again anyway."""
        if self._under_way is not None:
            wait((self._under_way,))
            self._under_way = None

    def discard(self) -> None:
        """Let all producers go; `start` makes new ones, which fence whatever these left."""
        for transactor in self._transactors:
            transactor.close()
        self._transactors = []

    def close(self) -> None:
        """Wait for the commit under way and let everything go."""
        self.settle()
        self._thread.shutdown()
        self.discard()

    def _new(self, turn: int) -> Transactor:
        transactor = Transactor(self._config, f"{self._id_prefix}-{turn}")
        transactor.start()
        return transactor

    def _replace(self, turn: int) -> Transactor:
        self._metrics.producer_replaced()
        self._transactors[turn].close()
        self._transactors[turn] = self._new(turn)
        return self._transactors[turn]
