"""Which acknowledgements of the Kafka client prove that a record is stored. No I/O.

librdkafka also reports success where it only infers that records are stored: a later record of the
partition was acknowledged, or a broker reported a duplicate sequence number. After a leader died
the inference can be wrong, and no log holds the records. For such a batch librdkafka counts offsets
up from -1: the first record is reported without an offset, the second at 0, the third at 1.

The client hands a whole batch to one polling thread. At the same time, another thread may get
another batch of the partition, and the callbacks may alternate. So each thread has its own count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable


class Acknowledgements:
    """Tells the proven acknowledgements of one client from the inferred ones, by their offsets.

    Called in the delivery callback, in the thread that was handed the acknowledgement.

    Args:
        current: Returns the identity of that thread: `ports.Concurrency.current`.
    """

    def __init__(self, current: Callable[[], int] = Threads.current) -> None:
        self._current = current
        self._counted: dict[tuple[int, str, int], int] = {}

    def is_proven(self, topic: str, partition: int, offset: int | None) -> bool:
        """Return whether a broker has confirmed that the record is stored at `offset`.

        None is no offset: the first record of an inferred batch. A proven record behind such a
        batch never has the offset at which the count would continue: if the batch is stored, its
        own records or earlier ones have that offset.
        """
        if offset is not None and not self._counted:
            return True
        place = (self._current(), topic, partition)
        if offset is not None and offset != self._counted.get(place):
            return True
        self._counted[place] = 0 if offset is None else offset + 1
        return False
