"""Reads the dead letters of a relay's producer group, in a consumer group of its relays."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.bridge.config import letters_properties
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import KafkaFailure, bridge_error
from halfbridge.sql.local_messages.dead_letters import letter_of

if TYPE_CHECKING:
    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.kafka.ports import Place, Ports
    from halfbridge.sql.local_messages.dead_letters import Letter

# Records at a time. At 1 MiB each that is 64 MiB, as much as the client reads ahead.
_BATCH_MAX = 64


class LetterReader:
    """A member of the group that reads dead letters. Not thread-safe.

    Offsets are committed after the dead letters have had their effect, so a dead letter may be read
    twice. A group without offsets begins at the start of the topic.

    Args:
        config: The producer's settings: the brokers and the producer group.
        ports: Makes the member.
    """

    def __init__(self, config: BridgeConfig, ports: Ports) -> None:
        self._producer_group = config.producer_group
        self._reached: dict[Place, int] = {}  # positions that are not committed yet
        self._member = ports.kafka.member(letters_properties(config, ports.clock))
        self._member.join_and_read([config.names.dead])

    def read(self, timeout_s: float) -> list[Letter]:
        """Return dead letters of the group, waiting up to `timeout_s` for the first record.

        Raises:
            BridgeError: the topic is missing, or there is no right to read it; an operator acts.
        """
        try:
            first = self._member.poll(timeout_s)
            records = [] if first is None else [first, *self._member.take(_BATCH_MAX - 1)]
        except KafkaFailure as failure:
            raise bridge_error(failure) from failure
        letters = []
        for record in records:
            error = record.error()
            if error is not None:
                raise bridge_error(failure_of(error))
            self._reached[record.topic() or "", record.partition() or 0] = (
                record.offset() or 0
            ) + 1
            letter = letter_of(record, self._producer_group)
            if letter is not None:
                letters.append(letter)
        return letters

    def commit(self) -> None:
        """Commit the positions, past other groups' records too; a failure does no harm."""
        if not self._reached:
            return
        with suppress(KafkaFailure):  # another member has the partitions now
            mine = set(self._member.assignment())
            ahead = {place: (at, "") for place, at in self._reached.items() if place in mine}
            if ahead:
                self._member.commit(ahead)
            self._reached.clear()

    def close(self) -> None:
        """Leave the group."""
        self._member.close()
