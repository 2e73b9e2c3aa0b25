"""What Spark's jobs take from the daemon's committed offsets."""

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from halfbridge.serde.progress import Progress
from halfbridge.spark import read_messages, read_transactions
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.reading.cluster import Applied, read_applied
from halfbridge.spark_jobs.reading.offsets import (
    EARLIEST,
    LATEST,
    NOTHING_LEFT_MS,
    Position,
    Range,
    Snapshot,
    continued,
    parse_position,
    read_snapshot,
    unread,
)
from halfbridge.spark_jobs.reading.schemas import load_schema
from halfbridge.spark_jobs.reading.topics import Topics, source_options

HALF, OP = "RMQ_SYS_TRANS_HALF", "RMQ_SYS_TRANS_OP"
PROGRESS = Progress(half=3, op=9, rebuild_to=8, ops_from=5, position=7)


def test_offsets_and_positions_are_read() -> None:
    """O is the op partition's offset, P is in its metadata; other topics do not matter."""
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


# --- where reads begin and end, as the command line says it and as Spark takes it ----------

NOON_MS = 1_762_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("1762000000000", Position(timestamp_ms=1_762_000_000_000)),
        ("2025-11-01T12:00:00Z", Position(timestamp_ms=NOON_MS)),
        ("2025-11-01T12:00:00", Position(timestamp_ms=NOON_MS)),
        ("2025-11-01T13:00:00+01:00", Position(timestamp_ms=NOON_MS)),
        ('{"b": {"0": 5}, "a": {"1": -2}}', Position('{"a": {"1": -2}, "b": {"0": 5}}')),
    ],
)
def test_positions(text: str, position: Position) -> None:
    """Words, times in any zone, milliseconds, offsets."""
    assert parse_position(text) == position


def test_so_long_ago() -> None:
    """A time before now, in seconds, minutes, hours or days."""
    now_ms = datetime.now(timezone.utc).timestamp() * 1000
    position = parse_position("-2h")
    assert position.timestamp_ms is not None
    assert now_ms - 7_200_000 <= position.timestamp_ms + 1
    assert parse_position("-1d").timestamp_ms < position.timestamp_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "-1",
        "-24x",
        "-999999d",
        "{",
        "{}x",
        '{"a": 5}',
        '{"a": {"0": -3}}',
        '{"a": {"x": 1}}',
    ],
)
def test_what_is_no_position(text: str) -> None:
    """Refused before Spark is asked."""
    with pytest.raises(ValueError, match=r"position|not like|year"):
        parse_position(text)


def test_options_of_both_ends() -> None:
    """A start time that nothing is newer than means the end, not an error."""
    assert EARLIEST.starting() == {"startingOffsets": "earliest"}
    assert LATEST.ending() == {"endingOffsets": "latest"}
    at = Position(timestamp_ms=5)
    assert at.starting() == {
        "startingTimestamp": "5",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    assert at.ending() == {"endingTimestamp": "5"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"start": "latest"}, "cannot start at latest: give earliest, a time"),
        ({"start": '{"orders": {"0": 5, "1": -1}}'}, "cannot start at latest: give earliest, a"),
        ({"end": "earliest"}, "cannot end at earliest: give latest, a time"),
        ({"end": '{"orders": {"0": -2}}'}, "cannot end at earliest: give latest, a time"),
    ],
)
def test_a_batch_does_not_start_at_latest(given: dict[str, str], text: str) -> None:
    """Nor end at earliest. Said before a session is used; Spark has words of its own for it."""
    no_session: Any = None
    with pytest.raises(ValueError, match=text):
        read_messages(no_session, bootstrap_servers="localhost:1", topics="orders", **given)


def test_transactions_are_read_from_earliest_or_a_time() -> None:
    """The positions apply to several topics."""
    no_session: Any = None
    for start in ("latest", '{"orders": {"0": 1}}'):
        with pytest.raises(ValueError, match="earliest or a time"):
            read_transactions(no_session, bootstrap_servers="localhost:1", start=start)


# --- schemas as the command line names them ------------------------------------------------

SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})


def test_a_file_is_known_by_its_fingerprint_or_by_the_id_given(tmp_path: Path) -> None:
    """White space and order of attributes do not matter to a fingerprint."""
    (tmp_path / "a.avsc").write_text(SCHEMA)
    (tmp_path / "b.avsc").write_text(json.dumps(json.loads(SCHEMA), indent=4))
    first, second = (load_schema(str(tmp_path / name)) for name in ("a.avsc", "b.avsc"))
    assert first.name == second.name
    assert first.name.startswith("avro:")
    assert load_schema(f"17={tmp_path}/a.avsc").name == "confluent:17"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("{", "no Avro schema"),
        ('{"type": "record", "name": "R"}', "no schema of a record"),
        ('{"type": "record", "fields": []}', "no Avro schema"),
        ('"long"', "no schema of a record"),
    ],
)
def test_what_is_no_schema(tmp_path: Path, text: str | None, reason: str) -> None:
    """The error names the file."""
    path = tmp_path / "x.avsc"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=reason) as caught:
        load_schema(str(path))
    assert str(path) in str(caught.value)


def test_an_id_has_32_bits(tmp_path: Path) -> None:
    """A larger one is a slip of the finger, not an id."""
    (tmp_path / "a.avsc").write_text(SCHEMA)
    with pytest.raises(ValueError, match="32 bits"):
        load_schema(f"4294967296={tmp_path}/a.avsc")


# --- snapshots: what was read can be read again, and everything else is refused ------------

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


# --- the options of a read: what makes it right is fixed, the rest is the caller's ---------


def of(**topics: dict[int, Range]) -> Snapshot:
    """Return a snapshot of these topics."""
    return Snapshot(prefix="", taken_ms=0, topics=topics, real_topics=())


def test_a_snapshot_is_continued() -> None:
    """It starts where the former one did; what is new is unread, whole new partitions too."""
    former = of(a={0: Range(2, 5, 7), 1: Range(0, 0)})
    fresh = of(a={0: Range(5, 9, 8), 1: Range(0, 0), 2: Range(1, 3, 8)}, b={0: Range(0, 1)})
    both = continued(former, fresh)
    assert both.topics == {
        "a": {0: Range(2, 9, 7), 1: Range(0, 0), 2: Range(1, 3, 8)},
        "b": {0: Range(0, 1)},
    }
    assert {topic: dict(of) for topic, of in unread(former, both).topics.items()} == {
        "a": {0: Range(5, 9, 7), 1: Range(0, 0), 2: Range(1, 3, 8)},
        "b": {0: Range(0, 1)},
    }
    assert unread(None, both) == both


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ({0: Range(0, 4)}, "was read to offset 5, and now ends at 4: records were lost"),
        ({}, "was read to offset 5, and now is not there: records were lost"),
        ({0: Range(6, 9, 8)}, "now begins at 6: records were deleted before they were audited"),
    ],
)
def test_a_snapshot_that_cannot_be_continued(ranges: dict[int, Range], text: str) -> None:
    """The line says why, and what to do."""
    with pytest.raises(JobError, match=rf"a\[0\] .*{text}.* Begin with a new --state"):
        continued(of(a={0: Range(0, 5)}), of(a=ranges))


def test_a_real_topic_is_read_committed_and_whole() -> None:
    """Committed records only, no silent loss, headers included."""
    options = source_options(Topics.of("orders"), bootstrap_servers="a:1,b:2")
    right = {
        "kafka.bootstrap.servers": "a:1,b:2",
        "subscribe": "orders",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }
    assert {name: options[name] for name in right} == right


def test_consumer_properties_are_passed_on() -> None:
    """They get Spark's prefix and win over our tuning."""
    given = {"security.protocol": "SSL", "max.poll.records": "7"}
    options = source_options(Topics.of("orders"), bootstrap_servers="a:1", kafka=given)
    assert options["kafka.security.protocol"] == "SSL"
    assert options["kafka.max.poll.records"] == "7"


@pytest.mark.parametrize("name", ["isolation.level", "bootstrap.servers"])
def test_what_makes_a_read_right_cannot_be_changed(name: str) -> None:
    """A job that quietly counted aborted rows, or another cluster's, would be worse than none."""
    with pytest.raises(ValueError, match=name):
        source_options(Topics.of("orders"), bootstrap_servers="a:1", kafka={name: "x"})


def test_empty_servers_are_refused() -> None:
    """They mean nothing to Spark."""
    with pytest.raises(ValueError, match="empty"):
        source_options(Topics.of("orders"), bootstrap_servers="")


@pytest.mark.parametrize(
    ("names", "pattern"), [((), ""), (("",), ""), (("a",), "b.*"), (("a,b",), "")]
)
def test_topics_are_names_or_a_pattern(names: tuple[str, ...], pattern: str) -> None:
    """Nothing, an empty name, both, and two names in one are refused."""
    with pytest.raises(ValueError, match="topic"):
        Topics.of(*names, pattern=pattern)
