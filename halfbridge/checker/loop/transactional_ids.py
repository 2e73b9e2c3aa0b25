"""Which transactional id a producer takes: a spare one while the last kafka_txn of another lasts.

A marker of a partition that is away cannot be written, and until it is, the transactional id cannot
be used (ADR 26).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from halfbridge.checker.loop.failures import KafkaTxnFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from halfbridge.kafka.ports import Clock

_log = logging.getLogger("halfbridge.checker")

# Spare transactional ids, beside those of the producers that take turns. An attempt to write to a
# partition that is away needs one, and there are some four attempts before its metadata tell, or
# its deliveries are given up.
SPARES_MAX = 6
# How long a worker that has written waits for a transactional id whose kafka_txn does not end. The
# markers of partitions that are there take milliseconds.
UNENDED_S = 2.0
# After this time such an id is tried again, if no other one is free.
UNENDED_AGAIN_S = 60.0

T = TypeVar("T")


def with_spares(count: int) -> range:
    """Return the numbers of `count` transactional ids and of the spare ones."""
    return range(count + SPARES_MAX)


class TransactionalIds:
    """The ids that producers of one thread share.

    Args:
        names: The ids, in the order in which they are taken.
        clock: The clock.
        spare_taken: Called when an id is left for another one.
    """

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
        """Return what `start` returns for the first id that is free.

        Args:
            start: Takes an id over; raises KafkaTxnFailedError.
            in_use: Ids of producers that are there.

        Raises:
            KafkaTxnFailedError: no id is free, or brokers do not answer.
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
        """Abort, once, what a predecessor left open under the other ids: readers wait for it.

        Raises:
            KafkaTxnFailedError: brokers do not answer; call again.
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
