"""What a child reads, as its guard finds it after the child's death."""

import os
import signal

import pytest

from halfbridge.kafka import last_read

PROPERTIES = {"bootstrap.servers": "kafka:9092", "check.crcs": True, "fetch.max.bytes": 1000}


@pytest.fixture(autouse=True)
def _unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without shared memory, as a process without a guard does."""
    monkeypatch.setattr(last_read, "_shared", [])
    monkeypatch.setattr(last_read, "_verifies", [])


def test_a_process_without_a_guard_keeps_nothing_and_verifies_no_checksums() -> None:
    """A wrong checksum would abort it, and nobody could say which record was read."""
    last_read.note(PROPERTIES, {("orders", 0): 7})
    assert last_read.last() is None
    assert not last_read.verifies()


@pytest.mark.parametrize("verifies", [False, True])
def test_the_guard_says_whether_checksums_are_verified(verifies: bool) -> None:
    """Not for the command that shows findings in spite of a damaged record."""
    last_read.share(verifies=verifies)
    assert last_read.verifies() is verifies


def test_the_last_reading_counts() -> None:
    """A reader's places replace those of the one before; a reader of nothing changes nothing."""
    last_read.share(verifies=True)
    assert last_read.last() is None
    last_read.note(PROPERTIES, {("a-topic-with-a-long-name", 11): 1 << 62})
    last_read.note(PROPERTIES, {("orders", 0): 7, ("orders", 1): 0})
    last_read.note({"group.id": "other"}, {})
    kept = last_read.last()
    assert kept is not None
    assert kept.properties == PROPERTIES
    assert [tuple(each) for each in kept.starts] == [("orders", 0, 7), ("orders", 1, 0)]


def test_a_callback_is_left_out() -> None:
    """It cannot be given to another process, which needs it for nothing."""
    last_read.share(verifies=True)
    last_read.note({**PROPERTIES, "error_cb": print}, {("orders", 0): 7})
    kept = last_read.last()
    assert kept is not None
    assert kept.properties == PROPERTIES


def test_a_reading_that_takes_too_much_memory_is_no_reading() -> None:
    """Nor is the one before it, which would name the wrong places."""
    last_read.share(verifies=True)
    last_read.note(PROPERTIES, {("orders", 0): 7})
    last_read.note(PROPERTIES, {("orders" * 8, number): 7 for number in range(10_000)})
    assert last_read.last() is None


@pytest.mark.process
def test_the_guard_sees_what_its_dead_child_read() -> None:
    """The memory is shared with a fork, and outlives it."""
    last_read.share(verifies=True)
    child = os.fork()
    if not child:
        last_read.note(PROPERTIES, {("orders", 3): 9})
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    kept = last_read.last()
    assert kept is not None
    assert [tuple(each) for each in kept.starts] == [("orders", 3, 9)]
