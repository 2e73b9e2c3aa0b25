"""Finds partitions in which a consumer has stalled: it reads nothing, and the log has more. Pure.

After leaders have moved, librdkafka's consumers fetch nothing more in rare cases, without an error
and for good (its issues 4340, 4492).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

# How often brokers are asked where logs end: one request to each of them. A third of STALLED_S, by
# which a stall is noticed late at most.
POLL_S = 20.0
# As long as the client itself waits for one answer (socket.timeout.ms): until then the client may
# recover alone. A false alarm costs only a new consumer.
STALLED_S = 60.0
# If nothing was polled for this time, the process was suspended, and the consumer has not stalled.
UNREAD_S = 5.0


class LaggingPartition(NamedTuple):
    """How far a partition has been read, and since when its log is known to have more."""

    reached: int
    since: float


def compare(
    behind: Mapping[tuple[str, int], LaggingPartition],
    reached: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
    now: float,
) -> dict[tuple[str, int], LaggingPartition]:
    """Return the partitions that are behind, each with the time when its position was first seen.

    `behind` is the last result; `reached` has the offset after the last record read, negative for
    none. Partitions missing from `ends`, whose broker did not answer, are not judged.
    """
    found = {}
    for place, at in reached.items():
        if at < ends.get(place, at):
            was = behind.get(place)
            found[place] = (
                was if was is not None and was.reached == at else LaggingPartition(at, now)
            )
    return found
