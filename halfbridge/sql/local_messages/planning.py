"""Divides rows into the message transactions of a round. Pure.

A round has at most one batch for each half partition, so that at most one decision of a half
partition is under way. After a row is passed over, later rows of its key are passed over too. So
the rows of a key are always sent in order, without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from halfbridge.sql.local_messages.rows import LocalMessage


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one message transaction, with one real topic, by id.

    Attributes:
        messages: The rows, at least one.
        half_partition: Half partition of the keys; None for rows without keys.
    """

    messages: tuple[LocalMessage, ...]
    half_partition: int | None

    @property
    def topic(self) -> str:
        """The real topic."""
        return self.messages[0].topic


class _Draft:
    """A batch that is being filled."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages: list[LocalMessage] = []
        self._messages_left = messages_max
        self._bytes_left = bytes_max

    def takes(self, message: LocalMessage) -> bool:
        """Add the row if the batch has room for it; tell whether it was added.

        The first row is always added, whatever its size, because the client refuses rows that are
        too large.
        """
        if self.messages:
            first = self.messages[0]
            fits = self._messages_left > 0 and message.size_bytes <= self._bytes_left
            if message.send_alone or first.send_alone or message.topic != first.topic or not fits:
                return False
        self.messages.append(message)
        self._messages_left -= 1
        self._bytes_left -= message.size_bytes
        return True


def plan_batches(
    messages: Iterable[LocalMessage],
    *,
    half_partitions: int,
    blocked: Collection[int],
    messages_max: int,
    bytes_max: int,
) -> list[Batch]:
    """Return the batches of one round for rows with keys.

    Args:
        messages: Ascending by id; for each key all rows that may be sent, from its first one on.
        half_partitions: Number of half partitions.
        blocked: Half partitions for which nothing may be sent now.
        messages_max: Most messages of a batch.
        bytes_max: Most bytes of a batch; its first row may exceed it.

    Returns:
        At most one batch for a half partition.
    """
    drafts: dict[int, _Draft] = {}
    passed_over: set[int] = set()
    for message in messages:
        key_hash = message.key_hash
        if key_hash is None or key_hash in passed_over:
            continue
        place = key_hash % half_partitions
        if place in blocked:
            continue
        draft = drafts.get(place)
        if draft is None:
            draft = drafts[place] = _Draft(messages_max, bytes_max)
        if not draft.takes(message):
            passed_over.add(key_hash)
    return [Batch(tuple(draft.messages), place) for place, draft in drafts.items()]


def plan_keyless(
    messages: Sequence[LocalMessage], *, messages_max: int, bytes_max: int
) -> list[Batch]:
    """Divide all rows without keys into batches, each with one topic."""
    open_drafts: dict[str, _Draft] = {}
    drafts: list[_Draft] = []
    for message in messages:
        draft = open_drafts.get(message.topic)
        if draft is None or not draft.takes(message):
            draft = open_drafts[message.topic] = _Draft(messages_max, bytes_max)
            drafts.append(draft)
            draft.takes(message)
    return [Batch(tuple(draft.messages), None) for draft in drafts]


def rotated(places: Collection[int], turn: int) -> list[int]:
    """Return half partitions in rotation, so that rounds begin with different ones."""
    start = turn % len(places)
    found = sorted(places)
    return found[start:] + found[:start]
