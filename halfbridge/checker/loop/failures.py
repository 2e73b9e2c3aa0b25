"""Errors between the loop and Kafka, and the count of failures in a row.

Exception
├─ InputLostError       the worker reads again from the committed offsets
└─ KafkaTxnFailedError  the worker replaces its producers, then reads again

After each error the ledgers are dropped and rebuilt, after a pause that grows with the count.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from halfbridge.kafka.errors import PERMANENT, TOO_LARGE, Code

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from halfbridge.checker.status import Status
    from halfbridge.kafka.errors import KafkaFailure
    from halfbridge.kafka.ports import TopicPartition


class InputLostError(Exception):
    """Consumed records may be lost: the worker reads again from the committed offsets."""


class KafkaTxnFailedError(Exception):
    """A kafka_txn failed, or its outcome is unknown; producers are replaced.

    Attributes:
        failure: The error of the client or a broker; None if there was none.
        topic: Topic of the refused record; empty if not known.
        fenced: Another producer took over the id, or the broker timed out the kafka_txn.
        is_vague: The client called a record invalid, and does not tell whether its timestamp is.
        places: Partitions that did not take a record for now.
    """

    def __init__(
        self,
        text: str,
        failure: KafkaFailure | None = None,
        *,
        topic: str = "",
        fenced: bool = False,
        is_vague: bool = False,
        places: Iterable[TopicPartition] = (),
    ) -> None:
        super().__init__(text)
        self.failure = failure
        self.topic = topic
        self.fenced = fenced
        self.is_vague = is_vague
        self.places: Final = frozenset(places)

    @property
    def permanent(self) -> bool:
        """Whether the broker permanently refuses something in the batch."""
        return self._code in PERMANENT

    @property
    def topic_refused(self) -> bool:
        """Whether the broker refuses all records of this daemon for a topic (`topic`, if known)."""
        return self._code == Code.TOPIC_AUTHORIZATION_FAILED

    @property
    def untimely(self) -> bool:
        """Whether the broker refuses a timestamp."""
        return self._code == Code.INVALID_TIMESTAMP

    @property
    def is_unended(self) -> bool:
        """Whether the last kafka_txn of the transactional id has not ended yet."""
        return self._code == Code.CONCURRENT_TRANSACTIONS

    @property
    def too_large(self) -> bool:
        """Whether the broker refuses a size: of one record, or of several sent at once."""
        return self._code in TOO_LARGE

    @property
    def _code(self) -> int | None:
        return None if self.failure is None else self.failure.code


_log = logging.getLogger("halfbridge.checker")
# The first delay is short, since most failures pass at once.
FIRST_S = 0.05
LONGEST_S = 5.0  # a broker that restarts is back within seconds
# Failures in a row after which health shows the last one.
FAILURES_RED = 3


class FailureCount:
    """Counts failures in a row, and ends the count when the worker succeeds.

    A rebuild is a success only for a worker that was able to write. Example: the broker refuses
    each kafka_txn of pair 3. Its rebuilds between the attempts prove nothing; only a commit ends
    the count.
    """

    def __init__(self, status: Status) -> None:
        self._status = status
        self._in_a_row = 0
        self._failed_in: set[int] = set()  # pairs of kafka_txns that failed since the last commit

    def failed(self, why: str) -> float:
        """Count and log a failure, and return how long to wait before the next attempt, seconds."""
        self._in_a_row += 1
        wait_s = delay_s(self._in_a_row, FIRST_S, LONGEST_S)
        _log.warning("%s; reading again from the committed offsets in %.1f s", why, wait_s)
        if self._in_a_row >= FAILURES_RED:
            self._status.set_problem("work", why)
        return wait_s

    def kafka_txn_failed(self, pairs: Iterable[int]) -> None:
        """Record that a kafka_txn of these pairs failed."""
        self._failed_in.update(pairs)

    def committed(self) -> None:
        """Record that a kafka_txn is committed."""
        self._failed_in.clear()
        self._succeeded()

    def rebuilt(self, pairs: Collection[int]) -> None:
        """Record that the ledgers of all served pairs are rebuilt."""
        if self._failed_in.isdisjoint(pairs):
            self._succeeded()

    def _succeeded(self) -> None:
        if self._in_a_row:
            self._in_a_row = 0
            self._status.set_problem("work", "")


_DOUBLINGS_MAX = 16  # every delay has reached its longest by then


def delay_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return the delay after `failures` (from 1) in a row: doubled for each, up to `longest_s`."""
    return min(first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), longest_s)
