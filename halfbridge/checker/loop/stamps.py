"""Chooses the clock for the timestamps of written records. Pure."""

from __future__ import annotations

# Tells the Kafka client to use its own clock.
CLIENTS_CLOCK = 0
_CLOCKS = 3


class Stamps:
    """Partition time, unless a broker refuses it: then another clock, until that one is refused.

    A broker refuses timestamps too far ahead of its clock (`message.timestamp.after.max.ms`).
    Partition time comes from another broker's clock, or from the same clock before it was set back.
    The client's clock may be wrong as well. The append time of the last record is right as soon as
    the brokers' clocks are. The daemon makes the timestamps, so no transaction is blamed for them.
    """

    def __init__(self) -> None:
        self._turn = 0

    def ms(self, partition_ms: int, latest_ms: int) -> int:
        """Return the timestamp of a record to write.

        Args:
            partition_ms: Partition time.
            latest_ms: Append time of the record that was read last.
        """
        return (partition_ms, CLIENTS_CLOCK, latest_ms)[self._turn]

    @property
    def turn(self) -> int:
        """The number of the clock in use."""
        return self._turn

    def refused(self, turn: int) -> None:
        """Record that a broker refuses timestamps of the clock `turn`, and use the next clock."""
        if turn == self._turn:  # else the report is old, and the next clock is in use already
            self._turn = (turn + 1) % _CLOCKS
