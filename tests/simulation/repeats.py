"""What a reader makes of records that are repeated, where messages are delivered at least once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfbridge.kafka.ports import TopicPartition


def without_repeats(
    delivered: dict[TopicPartition, list[str]], known: set[str], expected: set[str]
) -> dict[TopicPartition, list[str]]:
    """Return what one who takes each message once sees: its first record in each partition.

    A message without a key may be repeated in another partition; then no partition tells its place.
    Of a transaction that the broker refuses, some messages may stand there besides their dead
    letters: those that were written together with the refused one before anybody knew of that.
    """
    firsts = {place: dict.fromkeys(lines) for place, lines in delivered.items()}
    places = Counter(words for lines in firsts.values() for words in lines)
    refused = known - expected
    found = {
        place: [words for words in lines if words not in refused and places[words] == 1]
        for place, lines in firsts.items()
    }
    elsewhere = sorted(words for words in places if places[words] > 1 and words not in refused)
    found.update({("several", number): [words] for number, words in enumerate(elsewhere)})
    return found


def repeats_in(delivered: dict[TopicPartition, list[str]]) -> int:
    """Return how many records say what another one says."""
    lines = [words for found in delivered.values() for words in found]
    return len(lines) - len(set(lines))
