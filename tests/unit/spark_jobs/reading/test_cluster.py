"""What Spark's jobs take from the daemon's committed offsets."""

from __future__ import annotations

from halfbridge.serde.progress import Progress
from halfbridge.spark_jobs.reading.cluster import Applied, read_applied

HALF, OP = "RMQ_SYS_TRANS_HALF", "RMQ_SYS_TRANS_OP"
PROGRESS = Progress(half=3, op=9, rebuild_to=8, ops_from=5, position=7)


def test_offsets_and_positions_are_read() -> None:
    """O is the op partition's offset, P stands in its metadata; other topics do not matter."""
    committed = {
        (HALF, 0): (3, ""),
        (OP, 0): (9, PROGRESS.metadata()),
        ("orders", 0): (5, "somebody's"),
    }
    assert read_applied(committed, half=HALF, op=OP) == Applied({0: 9}, {0: 7})


def test_a_position_that_cannot_be_trusted_is_not_taken() -> None:
    """Metadata that is damaged, of another offset, or without its half offset tells no position."""
    committed = {
        (HALF, 0): (3, ""),
        (OP, 0): (9, PROGRESS.metadata().replace(";7;", ";8;")),
        (HALF, 1): (3, ""),
        (OP, 1): (10, PROGRESS.metadata()),
        (OP, 2): (9, PROGRESS.metadata()),
        (HALF, 3): (3, ""),
        (OP, 3): (9, None),
    }
    assert read_applied(committed, half=HALF, op=OP) == Applied({0: 9, 1: 10, 2: 9, 3: 9}, {})
