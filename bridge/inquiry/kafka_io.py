"""Questions to the brokers: where partitions begin and end.

An AdminClient asks many at a time. A Consumer would ask one after the other, would have to be given
a group and its time-outs, and the answers would queue up behind a broker that is away.
"""

from __future__ import annotations

from concurrent.futures import TimeoutError  # noqa: A004  # its own on 3.10
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

# How much later than its own limit the client is given up: it knows the reason.
_CLIENT_GRACE_S = 1.0


def ask_offsets(
    admin: Any,
    places: Iterable[TopicPartition],
    spec: OffsetSpec,
    timeout_s: float,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, Any]:
    """Ask where logs begin or end; `offset_of` tells what each future has.

    Read_uncommitted: the last stable offset lies while a put-back of the daemon is open.
    """
    futures: dict[TopicPartition, Any] = admin.list_offsets(
        dict.fromkeys(places, spec),
        isolation_level=isolation,
        request_timeout=timeout_s,
    )
    return futures


def offset_of(future: Any, timeout_s: float) -> int:
    """Return what a future of `ask_offsets` has, that was asked with `timeout_s`; blocks.

    Raises:
        KafkaException: the partition's broker did not answer, or as the client says. When time is
            up the client (2.16) names no error: the offset is still the negative one that the
            question went out with. Taken for an answer it would be the end of a truncated log.
    """
    with suppress(TimeoutError):  # not even the client answers
        offset = int(future.result(timeout_s + _CLIENT_GRACE_S).offset)
        if offset >= 0:
            return offset
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Ends:
    """Up to where partitions can be read: a question under way.

    Args:
        admin: Asks it.
        wanted: (topic, partition).
        timeout_s: After this, whose broker did not answer is given up.
        isolation: High watermarks, or last stable offsets.
    """

    def __init__(
        self,
        admin: Any,
        wanted: Iterable[tuple[str, int]],
        timeout_s: float,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> None:
        places = [TopicPartition(topic, partition) for topic, partition in wanted]
        latest = OffsetSpec.latest()
        self._ends = ask_offsets(admin, places, latest, timeout_s, isolation=isolation)
        self._timeout_s = timeout_s

    @property
    def is_over(self) -> bool:
        """Whether `answers` has not to wait."""
        return all(each.done() for each in self._ends.values())

    def answers(self) -> dict[tuple[str, int], int]:
        """Return the offset of each partition whose broker did say; blocks."""
        found = {}
        for place, future in self._ends.items():
            with suppress(KafkaException, RuntimeError):  # as above
                found[place.topic, place.partition] = offset_of(future, self._timeout_s)
        return found
