"""The transactional producers, which take turns, and the kafka_txn that is under way.

A producer's next kafka_txn meets CONCURRENT_TRANSACTIONS while the markers of its last one are
being written, so two or three producers take turns. There is still only one kafka_txn at a time:
each commit is acknowledged before the next kafka_txn begins. If a partition is away, its marker
cannot be written: until it is, `TransactionalIds` lets a producer use a spare id (ADR 26).
"""

from __future__ import annotations

import logging
from concurrent.futures import TimeoutError as NotDoneError  # its own on 3.10
from typing import TYPE_CHECKING, Protocol, TypeVar

from halfbridge.checker.loop.at_least_once import AtLeastOnce
from halfbridge.checker.loop.blame import SendSize
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import STALL_S, Transactor
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.kafka.ports import Call, Clock, Ports, SideThread

_log = logging.getLogger("halfbridge.checker")
# Interval at which a slow commit is checked: bounds how late a hung call is noticed.
POLL_S = 0.5


class ProducerMetrics(Protocol):
    """Counters of the daemon and of the relay of changes."""

    def producer_replaced(self) -> None:
        """Count a producer that was replaced."""

    def spare_id_taken(self) -> None:
        """Count a transactional id that was left for another one."""


class TransactionalProducers:
    """Writes kafka_txns, one at a time; a large one commits while the caller reads on.

    Commits run in a thread of their own, because sending offsets can block without limit if a
    broker disconnects during the call (librdkafka #5456). Such a call is abandoned with its
    producer; a new producer of the same id fences it.
    """

    def __init__(
        self, config: CheckerConfig, id_prefix: str, metrics: ProducerMetrics, *, ports: Ports
    ) -> None:
        self._config = config
        self._ids = TransactionalIds(
            [f"{id_prefix}-{n}" for n in with_spares(config.transactional_producers)],
            ports.clock,
            metrics.spare_id_taken,
        )
        self._metrics = metrics
        self._ports = ports
        self._transactors: list[Transactor | AtLeastOnce] = []
        self._were_ready = False
        self._turn = 0
        self._under_way: Call | None = None
        self._committing: Transactor | AtLeastOnce | None = None
        self._thread = self._new_thread()

    @property
    def are_ready(self) -> bool:
        """Whether all producers exist."""
        return len(self._transactors) == self._config.transactional_producers

    def start(self, send_size: SendSize = SendSize.USUAL) -> None:
        """Make the missing producers. KafkaTxnFailedError: not possible now; try again."""
        while not self.are_ready:
            self._transactors.append(self._new(send_size))
        self._ids.fence(self._fence, self._in_use)
        self._were_ready = True

    def write(
        self,
        records: Iterable[Outgoing],
        send_size: SendSize = SendSize.USUAL,
        stall_s: float = STALL_S,
    ) -> Mapping[int, int]:
        """Begin a kafka_txn and write `records`, in order; `commit` ends it.

        A producer with another `send_size` is replaced first. `stall_s`, the longest time without
        any acknowledgement, holds for `commit` too. Return half partition -> highest offset of a
        copy plus one; all copies are acknowledged. Raises KafkaTxnFailedError: it failed; the
        worker replaces its producers and repeats.
        """
        transactor = self._transactors[self._turn]
        if transactor.must_be_replaced() or transactor.send_size is not send_size:
            transactor = self._replace(self._turn, send_size)
        return transactor.write(records, stall_s)

    def commit(
        self,
        offsets: Sequence[tuple[str, int, int, str]],
        membership: object,
        *,
        in_background: bool,
    ) -> None:
        """Commit the written records with (topic, partition, offset, metadata).

        Raises KafkaTxnFailedError: the kafka_txn failed, or its outcome is unknown; the worker
        replaces its producers and repeats.
        """
        self._committing = self._transactors[self._turn]
        self._under_way = self._thread.submit(self._committing.commit, offsets, membership)
        self._turn = (self._turn + 1) % len(self._transactors)
        while not in_background and not self.is_done(POLL_S):
            pass

    @property
    def is_under_way(self) -> bool:
        """Whether a commit runs in the background, or its result was not taken yet."""
        return self._under_way is not None

    def is_done(self, timeout_s: float = 0) -> bool:
        """Tell whether the commit is acknowledged.

        Raises KafkaTxnFailedError: failed, or unknown; the worker replaces its producers and
        repeats.
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

        After a failure all producers are dropped: late requests of the failed kafka_txn would apply
        to the next one with the same epoch (KAFKA-17754).
        """
        was_under_way = self.is_under_way
        try:
            while not self.is_done(POLL_S):
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
        raise KafkaTxnFailedError("sending offsets does not return: abandoned with its producer")

    def _new(self, send_size: SendSize) -> Transactor | AtLeastOnce:
        return self._ids.started(lambda name: self._started(name, send_size), self._in_use)

    @property
    def _in_use(self) -> set[str]:
        return {each.transactional_id for each in self._transactors}

    def _fence(self, name: str) -> None:
        spare = Transactor(self._config, name, ports=self._ports)
        try:
            spare.start(UNENDED_S)
        finally:
            spare.close()

    def _started(self, name: str, send_size: SendSize) -> Transactor | AtLeastOnce:
        is_exact = self._config.delivery == Delivery.EXACTLY_ONCE
        outlet = Transactor if is_exact else AtLeastOnce
        try:
            transactor = outlet(self._config, name, ports=self._ports, send_size=send_size)
        except ConfigError as error:
            if not self._were_ready:
                raise
            # For example while a certificate is being replaced, or the system has no threads.
            raise KafkaTxnFailedError(str(error)) from error
        try:
            transactor.start(UNENDED_S if self._were_ready else None)
        except KafkaTxnFailedError:
            transactor.close()
            raise
        return transactor

    def _replace(self, turn: int, send_size: SendSize) -> Transactor | AtLeastOnce:
        self._metrics.producer_replaced()
        old = self._transactors.pop(turn)
        old.close()
        self._transactors.insert(turn, self._new(send_size))
        return self._transactors[turn]

    def _new_thread(self) -> SideThread:
        return self._ports.run.side_thread("halfbridge-commit")


# Spare transactional ids, besides those of the producers that take turns. An attempt to write to a
# partition that is away needs one, and there are some four attempts before its metadata tell, or
# its deliveries are given up.
SPARES_MAX = 6
# How long a worker that has written waits for a transactional id whose kafka_txn does not end. The
# markers of partitions that are there take milliseconds.
UNENDED_S = 2.0
# After this time such an id is tried again, if no other one is free: brokers have ended its
# kafka_txn by then, unless a partition is away (kafka_txn_timeout_ms, 20 s).
UNENDED_AGAIN_S = 60.0
T = TypeVar("T")


def with_spares(count: int) -> range:
    """Return the numbers of `count` transactional ids and of the spare ones."""
    return range(count + SPARES_MAX)


class TransactionalIds:
    """The ids that producers of one thread share, in the order in which they are taken."""

    def __init__(
        self, names: Sequence[str], clock: Clock, spare_taken: Callable[[], object]
    ) -> None:
        self._names = names
        self._clock = clock
        self._spare_taken = spare_taken
        self._unended: dict[str, float] = {}  # id -> when it was found, monotonic
        self._are_fenced = False

    @property
    def first(self) -> str:
        """The id that is taken where all are free."""
        return self._names[0]

    def started(self, start: Callable[[str], T], in_use: Collection[str] = ()) -> T:
        """Return what `start` returns for the first free id.

        Raises KafkaTxnFailedError: no id is free, or `start` failed; the worker tries again.
        """
        for name in self._free(in_use):
            try:
                started = start(name)
            except KafkaTxnFailedError as error:  # noqa: PERF203  (a few ids)
                if not error.is_unended:
                    raise
                self._note(name)
            else:
                self._unended.pop(name, None)
                return started
        self._unended.clear()
        raise KafkaTxnFailedError(
            f"the kafka_txns of all {len(self._names)} transactional ids wait for markers"
        )

    def fence(self, fence: Callable[[str], None], in_use: Collection[str]) -> None:
        """Abort, once, a predecessor's kafka_txns: readers wait.

        Raises KafkaTxnFailedError: not all are aborted; the worker tries again.
        """
        if self._are_fenced:
            return
        for name in self._free(in_use):
            try:
                fence(name)
            except KafkaTxnFailedError as error:  # noqa: PERF203  (a few ids)
                if not error.is_unended:
                    raise
                self._note(name)
        self._are_fenced = True

    def _free(self, in_use: Collection[str]) -> Iterator[str]:
        """Yield the ids to try; those whose kafka_txn did not end come last, after a pause."""
        now = self._clock.monotonic()
        free = [name for name in self._names if name not in in_use]
        yield from (name for name in free if name not in self._unended)
        yield from (name for name in free if now - self._unended.get(name, now) >= UNENDED_AGAIN_S)

    def _note(self, name: str) -> None:
        self._unended[name] = self._clock.monotonic()
        self._spare_taken()
        _log.warning(
            "the last kafka_txn of %s does not end: a partition that it wrote to cannot take its"
            " marker. Another transactional id is used",
            name,
        )
