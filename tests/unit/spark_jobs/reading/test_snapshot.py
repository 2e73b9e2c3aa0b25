"""Snapshots: what was read can be read again, and everything else is refused."""

from __future__ import annotations

import json

import pytest

from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.reading.offsets import NOTHING_LEFT_MS, Range, Snapshot, read_snapshot

SNAPSHOT = Snapshot(
    prefix="p-",
    taken_ms=1_700_000_000_000,
    topics={
        "p-RMQ_SYS_TRANS_HALF_TOPIC": {0: Range(5, 9, 17), 1: Range(0, 3)},
        "p-RMQ_SYS_TRANS_OP_HALF_TOPIC": {0: Range(0, 7), 1: Range(4, 4, NOTHING_LEFT_MS)},
        "orders": {0: Range(0, 10)},
    },
    real_topics=("orders",),
    applied={0: 7, 1: 4},
    positions={1: 3},
    hidden=("orders",),
    gone=("invoices",),
    topic_ids={"orders": "AbC"},
)


def test_a_snapshot_comes_back_as_it_was() -> None:
    """As JSON text, and out of the report that holds it."""
    text = json.dumps(SNAPSHOT.as_json())
    assert read_snapshot(text) == SNAPSHOT
    assert read_snapshot(json.dumps({"clean": True, "snapshot": SNAPSHOT.as_json()})) == SNAPSHOT


def test_a_snapshot_of_an_earlier_release_has_no_topic_ids() -> None:
    """They are not compared; topics of which nothing was read are not compared either."""
    given = SNAPSHOT.as_json()
    half, op = list(SNAPSHOT.topics)[:2]
    assert SNAPSHOT.kept_ids() == {half: "", op: "", "orders": "AbC"}
    del given["topic_ids"]
    given["topics"][op] = {"0": {"start": 7, "end": 7}}
    assert read_snapshot(json.dumps(given)).kept_ids() == {half: "", "orders": ""}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"snapshot": 3}',
        json.dumps({**SNAPSHOT.as_json(), "version": 2}),
        json.dumps({**SNAPSHOT.as_json(), "topics": {"orders": {"0": {"start": 1}}}}),
        json.dumps({**SNAPSHOT.as_json(), "applied": {"zero": 1}}),
    ],
)
def test_what_is_no_snapshot_is_refused(text: str) -> None:
    """One line says that, never a guess."""
    with pytest.raises(JobError, match="snapshot"):
        read_snapshot(text)


def test_ranges_by_role() -> None:
    """Half and op topic are found by the prefix; a dead-letter topic that was not read is empty."""
    assert SNAPSHOT.half[0].start == 5
    assert SNAPSHOT.op[1].end == 4
    assert SNAPSHOT.dead == {}
    assert SNAPSHOT.records() == 4 + 3 + 7 + 0 + 10
    assert SNAPSHOT.records(["orders"]) == 10


def test_what_may_be_deleted() -> None:
    """Up to the newest of the cut partitions' first records; everything where nothing is left."""
    assert SNAPSHOT.cut_until_ms("p-RMQ_SYS_TRANS_HALF_TOPIC") == 17
    assert SNAPSHOT.cut_until_ms("p-RMQ_SYS_TRANS_OP_HALF_TOPIC") == NOTHING_LEFT_MS
    assert SNAPSHOT.cut_until_ms("orders") == -1
    assert SNAPSHOT.cut_until_ms("unheard-of") == -1
