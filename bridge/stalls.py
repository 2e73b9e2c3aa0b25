"""Which partitions a consumer reads no further, though their logs go on. Pure.

librdkafka's consumers are known to fetch nothing more now and then after leaders have moved,
without an error and for good (its issues 4340, 4492). Nothing else would notice: no record is not
a failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

# How often brokers are asked where logs end: one request to each of them.
LOOK_S = 20.0
# As long as the client itself waits for one answer (socket.timeout.ms): it may mend that alone. A
# mistake costs a new consumer, no more.
STALLED_S = 60.0
# Records were not taken for so long: whatever stands still then, it is not the consumer.
UNREAD_S = 5.0


class Behind(NamedTuple):
    """How far a partition has been read, and since when there was more of it."""

    reached: int
    since: float


def compare(
    behind: Mapping[tuple[str, int], Behind],
    reached: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
    now: float,
) -> dict[tuple[str, int], Behind]:
    """Return the partitions that are behind, each since it was first found where it is.

    Args:
        behind: What this returned before.
        reached: (topic, partition) -> offset behind the last one that was read, negative for none.
        ends: The same -> up to where it can be read; where nobody answered, nothing is known.
        now: The time.
    """
    found = {}
    for place, at in reached.items():
        if at < ends.get(place, at):
            was = behind.get(place)
            found[place] = was if was is not None and was.reached == at else Behind(at, now)
    return found
