"""What the report says of what cannot be judged."""

from __future__ import annotations

from typing import Any

from halfbridge.serde.topics import TopicNames
from halfbridge.spark_jobs.audit.bounds import Bounds
from halfbridge.spark_jobs.audit.run import Audit, make_report, text_lines
from halfbridge.spark_jobs.reading.offsets import NOTHING_LEFT_MS, Range, Snapshot

NAMES = TopicNames()
NOON_MS = 1_700_000_000_000


def report(topics: dict[str, dict[int, Range]]) -> dict[str, Any]:
    """Return the report of an audit that found nothing in these topics."""
    snapshot = Snapshot(prefix="", taken_ms=NOON_MS, topics=topics, real_topics=("orders",))
    audit = Audit(
        records={},
        states={},
        examined=0,
        of_others=0,
        bounds=Bounds(snapshot),
        kinds={},
        findings=None,  # type: ignore[arg-type]
    )
    return make_report(audit, [], seconds=1.0)


def test_what_was_deleted_is_told_topic_by_topic() -> None:
    """An audit that can find nothing lost must not look like one that found nothing."""
    whole = {0: Range(0, 10)}
    made = report(
        {
            NAMES.half: whole,
            NAMES.op: {0: Range(0, 10), 1: Range(4, 10, NOON_MS)},
            NAMES.dead: {0: Range(3, 3, NOTHING_LEFT_MS)},
            "orders": {0: Range(2, 9, NOON_MS), 1: Range(5, 9, NOON_MS + 1000)},
        }
    )
    assert made["clean"]
    assert made["deleted_until_ms"] == {
        NAMES.op: NOON_MS,
        NAMES.dead: None,
        "orders": NOON_MS + 1000,
    }
    said = "\n".join(text_lines(made))
    assert f"a partition of {NAMES.dead} was emptied: nothing is called lost" in said
    assert "records of orders up to 2023-11-14T22:13:21+00:00 were deleted: nothing of it" in said


def test_nothing_is_told_of_whole_logs() -> None:
    """Then nothing is hidden from it."""
    made = report({NAMES.half: {0: Range(0, 10)}, "orders": {0: Range(0, 0)}})
    assert made["deleted_until_ms"] == {}
    assert "deleted" not in "\n".join(text_lines(made))
