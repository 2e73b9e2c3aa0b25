"""Which rows go into which message transactions now. Pure.

A round has at most one batch for a half partition, so that no two decisions of one half partition
are on their way at a time. Once a row was passed over, later rows of its key are passed over too:
within a key, what is sent is always a beginning of what waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from halfbridge.sql.local_messages.rows import LocalMessage


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one message transaction, of one real topic, by id.

    Attributes:
        messages: At least one.
        half_partition: Where the keys' transactions stand; None without keys.
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
        """Add the row where it may stand in this batch; tell whether it does.

        The first row of a batch always does, however large: the client refuses what is too large.
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
        messages: Ascending by id; of each key all that may be sent, from its first one on.
        half_partitions: How many there are.
        blocked: Half partitions for which nothing may be sent now.
        messages_max: Of a batch.
        bytes_max: Of a batch, but for its first row.

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
    """Return batches of rows without keys: all of them, by topic, in any number of batches."""
    open_drafts: dict[str, _Draft] = {}
    drafts: list[_Draft] = []
    for message in messages:
        draft = open_drafts.get(message.topic)
        if draft is None or not draft.takes(message):
            draft = open_drafts[message.topic] = _Draft(messages_max, bytes_max)
            drafts.append(draft)
            draft.takes(message)
    return [Batch(tuple(draft.messages), None) for draft in drafts]
