"""Which clock the written records are stamped with. Pure."""

from __future__ import annotations

# To the Kafka client, a record without a timestamp of its own: it takes its own clock's.
CLIENTS_CLOCK = 0
_CLOCKS = 3


class Stamps:
    """Partition time, unless a broker refuses it: then another clock, for as long as it is taken.

    A broker refuses what lies too far ahead of its clock (`message.timestamp.after.max.ms`), and
    partition time comes from another one, or from the same one before it was set back. The client's
    clock may be wrong as well; what was appended last is right once the brokers are. Timestamps
    are ours: a transaction is never blamed for them.
    """

    def __init__(self) -> None:
        self._turn = 0

    def ms(self, partition_ms: int, latest_ms: int) -> int:
        """Return the timestamp of what is written.

        Args:
            partition_ms: Partition time.
            latest_ms: Append time of the record that was read last.
        """
        return (partition_ms, CLIENTS_CLOCK, latest_ms)[self._turn]

    @property
    def turn(self) -> int:
        """Which clock's turn it is."""
        return self._turn

    def refused(self, turn: int) -> None:
        """Take that a broker refuses the timestamps of that turn's clock: the next one has its."""
        if turn == self._turn:  # else the news is old, and another clock is being tried already
            self._turn = (turn + 1) % _CLOCKS
