"""Offsets that a broker has told, and those that the client has counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from halfbridge.kafka.sending import Acknowledgements
from halfbridge.kafka.threads import Threads

TIMEOUT_S = 20.0


@pytest.mark.parametrize(
    ("offsets", "proven"),
    [
        ([0, 1, 2], [True, True, True]),
        ([7, None, 0, 1, 12], [True, False, False, False, True]),
        ([None, 1], [False, True]),
        ([None, 0, None, 0, 1], [False] * 5),
        ([None, 5, 0], [False, True, False]),
    ],
    ids=["told", "one batch", "a batch of one", "two batches", "another batch in between"],
)
def test_offsets_counted_from_none_prove_nothing(
    offsets: list[int | None], proven: list[bool]
) -> None:
    """Neither the first record of an inferred batch, which has none, nor the others."""
    told = Acknowledgements(Threads.current)
    assert [told.is_proven("half", 0, each) for each in offsets] == proven


def test_partitions_are_counted_each_for_itself() -> None:
    """What is inferred of one says nothing of another, nor of another topic."""
    told = Acknowledgements(Threads.current)
    assert not told.is_proven("half", 0, None)
    assert told.is_proven("half", 1, 0)
    assert told.is_proven("op", 0, 0)
    assert not told.is_proven("half", 0, 0)


def test_batches_that_two_threads_serve_side_by_side_are_counted_apart() -> None:
    """Each thread that polls works off a batch of its own, and the callbacks take turns."""
    told = Acknowledgements(Threads.current)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        proven = [
            thread.submit(told.is_proven, "half", 0, offset).result(TIMEOUT_S)
            for offset in (None, 0, 1)
            for thread in (one, other)
        ]
    assert proven == [False] * 6
