"""Which acknowledgements of the Kafka client prove that a record is stored. No I/O.

librdkafka reports success also where it only infers that records are stored: a later one of their
partition was acknowledged, or a broker spoke of a duplicate sequence number. When a leader dies the
inference can be wrong, and the records are nowhere. It then counts offsets up from -1, which is
none: the second record of such a batch is said to stand at 0, the third at 1, and so on.

The client hands a batch to one thread as a whole, and another batch of the same partition to
another thread that polls, so that their callbacks may take turns: the count is a thread's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.bridge.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable


class Acknowledgements:
    """Looks at the offsets of one client's acknowledgements, in the order each thread has them.

    Called in the delivery callback, so in the thread that the acknowledgement was handed to.

    Args:
        current: Returns the identity of that thread: `ports.Concurrency.current`.
    """

    def __init__(self, current: Callable[[], int] = Threads.current) -> None:
        self._current = current
        self._counted: dict[tuple[int, str, int], int] = {}

    def is_proven(self, topic: str, partition: int, offset: int | None) -> bool:
        """Tell whether a broker has said that the record stands at `offset`; None: at none.

        What follows an inferred batch cannot stand where the client's counting goes on: the batch
        stands there, or something before it.
        """
        if offset is not None and not self._counted:
            return True
        place = (self._current(), topic, partition)
        if offset is not None and offset != self._counted.get(place):
            return True
        self._counted[place] = 0 if offset is None else offset + 1
        return False
