"""What a coordinator tore is found in brokers' logs, and nothing else is taken for it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from halfbridge.testkit.torn import Batch, Torn, batches, ended, main, read, torn

PRODUCER, EPOCH = 7, 3
COMMIT, ABORT = True, False


def data(first: int, at_ms: int, *, last: int | None = None, epoch: int = EPOCH) -> Batch:
    """Return records of the producer."""
    return Batch(first, first if last is None else last, at_ms, PRODUCER, epoch, None)


def marker(first: int, at_ms: int, *, is_commit: bool, epoch: int = EPOCH) -> Batch:
    """Return a marker that the coordinator wrote."""
    return Batch(first, first, at_ms, PRODUCER, epoch, is_commit)


def found(**partitions: list[Batch]) -> list[Torn]:
    """Return what is torn."""
    return torn({name: ended(content) for name, content in partitions.items()})


def test_committed_here_and_aborted_there() -> None:
    """As on 2026-11-22: COMMIT of the old coordinator, ABORT of the next, for the same records."""
    once = [data(10, 100, last=12), marker(13, 900, is_commit=COMMIT)]
    again = [*once, marker(14, 1500, is_commit=ABORT, epoch=EPOCH + 1)]
    elsewhere = [data(5, 101, last=6), marker(7, 1500, is_commit=ABORT, epoch=EPOCH + 1)]
    assert found(a=again, b=elsewhere) == [
        Torn(PRODUCER, EPOCH, committed={"a": (10, 12)}, aborted={"b": (5, 6)})
    ]


def test_a_commit_that_is_written_twice_tears_nothing() -> None:
    """A coordinator that was started again repeats its markers."""
    twice = [data(10, 100), *(marker(11 + n, 900 + n, is_commit=COMMIT) for n in range(2))]
    elsewhere = [data(5, 950), marker(6, 1500, is_commit=ABORT)]
    assert found(a=twice, b=elsewhere) == []


def test_the_next_one_may_be_aborted_without_records() -> None:
    """A partition that was added to a kafka_txn and got nothing of it has its ABORT too."""
    before = [data(10, 100), marker(11, 200, is_commit=COMMIT)]
    added = [*before, marker(12, 1500, is_commit=ABORT, epoch=EPOCH + 1)]
    elsewhere = [data(5, 300), marker(6, 1500, is_commit=ABORT, epoch=EPOCH + 1)]
    assert found(a=added, b=elsewhere) == []


def test_an_abort_everywhere_tears_nothing() -> None:
    """A new producer of the same id aborts what the last one left."""
    left = [data(10, 100), marker(11, 900, is_commit=ABORT, epoch=EPOCH + 1)]
    assert found(a=left, b=left) == []


def test_logs_are_read_from_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Batches as brokers write them, of topics that are being deleted too."""
    again = [(10, 100, None), (11, 900, COMMIT), (12, 1500, ABORT)]
    for name, content in (
        ("a.b-0", again),
        ("c-1.0123abcd-delete", [(5, 101, None), (6, 1500, ABORT)]),
    ):
        directory = tmp_path / name
        directory.mkdir()
        segment = b"".join(_batch(*each) for each in content)
        (directory / "00000000000000000000.log").write_bytes(segment + bytes(100))
    (tmp_path / "meta.properties").write_text("")
    assert [each.is_commit for each in batches(_batch(1, 2, None) + _batch(3, 4, ABORT))] == [
        None,
        False,
    ]
    assert set(read(tmp_path)) == {"a.b-0", "c-1"}
    assert main([str(tmp_path)]) == 1
    assert "committed {'a.b-0': (10, 10)}, aborted {'c-1': (5, 5)}" in capsys.readouterr().out


def _batch(first: int, at_ms: int, is_commit: bool | None) -> bytes:
    key = b"" if is_commit is None else struct.pack(">hh", 0, int(is_commit))
    # Attributes, time, offset, key's length, key, no value, no headers; lengths in zigzag.
    record = bytes((0, 0, 0, 2 * len(key))) + key + b"\1\0"
    attributes = 0x10 if is_commit is None else 0x30
    body = struct.pack(">ibIhiqqqhii", 0, 2, 0, attributes, 0, at_ms, at_ms, PRODUCER, EPOCH, -1, 1)
    body += bytes((2 * len(record),)) + record
    return struct.pack(">qi", first, len(body)) + body
