"""Which partitions of a topic take no records, as its metadata and its setting show."""

from __future__ import annotations

import pytest

from halfbridge.kafka.ports import SeenTopic


@pytest.mark.parametrize(
    ("min_in_sync", "replicas", "in_sync", "unavailable"),
    [
        (None, 3, (1, 3), []),  # the setting is not known
        (1, 3, (1, 3), []),
        (2, 3, (1, 2), [0]),
        (3, 3, (2, 3), [0]),
        (2, 1, (1, 1), []),  # more than there are replicas: all of them are required
        (3, 2, (2, 2), []),
        (3, 2, (1, 2), [0]),
        (2, 3, (), []),  # the metadata are not known
    ],
)
def test_brokers_require_no_more_replicas_in_sync_than_there_are(
    min_in_sync: int | None, replicas: int, in_sync: tuple[int, ...], unavailable: list[int]
) -> None:
    """The lower of min.insync.replicas and the number of replicas: Partition.effectiveMinIsr."""
    seen = SeenTopic(2, replicas, in_sync=in_sync)
    assert [*seen.unavailable(min_in_sync)] == unavailable


def test_the_reason_names_the_numbers_and_a_missing_leader_comes_first() -> None:
    """A partition without a leader has no replica count worth showing."""
    seen = SeenTopic(3, 2, frozenset({2}), in_sync=(2, 1, 0))
    assert seen.unavailable(3) == {
        1: "has 1 of 2 required replicas in sync (min.insync.replicas=3)",
        2: "has no leader",
    }
