"""What readers rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code
from halfbridge.kafka.ports import NO_COMMITTED_OFFSET
from tests.ports.world import BEGINNING, LIMIT_S, SLICE_S, World, refused

if TYPE_CHECKING:
    from halfbridge.kafka.ports import Reader

_END, _STORED = -1, -1000


def _errors(world: World, offsets: dict[tuple[str, int], int], **properties: Any) -> Any:
    reader = world.reader(**properties)
    reader.read_from(offsets)
    return world.next_error(reader), reader


def records_come_as_they_were_sent(world: World) -> None:
    """Key, value, headers in their order with None and empty values, and CreateTime."""
    topic = world.topic()
    headers = [("b", b"1"), ("a", None), ("b", b"")]
    world.put(topic, b"value", key=b"key", headers=headers, timestamp_ms=1_700_000_000_123)
    world.put(topic, None, key=b"key")
    reader = world.reader()
    reader.read_from({(topic, 0): 0})
    first, second = world.to_the_end(reader)
    assert (first.topic(), first.partition(), first.offset()) == (topic, 0, 0)
    assert (first.key(), first.value(), len(first)) == (b"key", b"value", 5)
    assert first.headers() == headers
    assert first.timestamp() == (1, 1_700_000_000_123)
    assert (second.value(), second.headers(), len(second)) == (None, None, 0)
    assert second.error() is None


def append_time_is_the_brokers(world: World) -> None:
    """With LogAppendTime brokers stamp records, whatever the writer said."""
    topic = world.topic(message_timestamp_type="LogAppendTime")
    world.put(topic, b"1", b"2", timestamp_ms=5)
    reader = world.reader()
    reader.read_from({(topic, 0): 0})
    stamps = [record.timestamp() for record in world.to_the_end(reader)]
    assert [kind for kind, _ in stamps] == [2, 2]
    assert 5 < stamps[0][1] <= stamps[1][1]


def ends_are_reported(world: World) -> None:
    """PARTITION_EOF names topic, partition and the offset of the end, and comes once."""
    topic = world.topic()
    world.put(topic, b"1", b"2")
    reader = world.reader()
    reader.read_from({(topic, 0): 1})
    assert reader.poll(LIMIT_S).offset() == 1
    end = reader.poll(LIMIT_S)
    assert failure_of(end.error()).code == Code.PARTITION_EOF
    assert (end.topic(), end.partition(), end.offset()) == (topic, 0, 2)
    assert reader.poll(4 * SLICE_S) is None
    world.put(topic, b"3")
    assert reader.poll(LIMIT_S).offset() == 2
    assert reader.poll(LIMIT_S).offset() == 3


def ends_are_not_reported_unasked(world: World) -> None:
    """Without enable.partition.eof nothing is handed over at the end."""
    topic = world.topic()
    world.put(topic, b"1")
    reader = world.reader(enable_partition_eof=False)
    reader.read_from({(topic, 0): 0})
    assert reader.poll(LIMIT_S).value() == b"1"
    assert reader.poll(6 * SLICE_S) is None


def the_end_of_read_committed_is_stable(world: World) -> None:
    """PARTITION_EOF comes at the last stable offset, and again behind the marker."""
    topic = world.topic()
    writer = world.transactional()
    writer.begin()
    world.send(writer, topic)
    reader = world.reader()
    reader.read_from({(topic, 0): 0})
    assert reader.poll(LIMIT_S).offset() == 0
    writer.abort(LIMIT_S)
    end = world.next_error(reader)
    assert failure_of(end.error()).code == Code.PARTITION_EOF
    assert end.offset() == 2
    assert reader.positions([(topic, 0)]) == {(topic, 0): 2}


def positions_stand_behind_records(world: World) -> None:
    """A position is negative before any record; a marker counts like a record."""
    topic = world.topic(partitions=2)
    writer = world.transactional()
    writer.begin()
    world.send(writer, topic)
    writer.commit(LIMIT_S)
    reader = world.reader()
    places = [(topic, 0), (topic, 1)]
    reader.read_from(dict.fromkeys(places, 0))
    assert set(reader.positions(places).values()) == {NO_COMMITTED_OFFSET}
    world.to_the_end(reader, ends=2)
    assert reader.positions(places) == {(topic, 0): 2, (topic, 1): NO_COMMITTED_OFFSET}


def what_is_assigned_is_reported(world: World) -> None:
    """`assignment` is what `read_from` said, whether it is read or paused."""
    topic = world.topic(partitions=2)
    reader = world.reader()
    assert reader.assignment() == []
    reader.read_from({(topic, 0): 0, (topic, 1): 0})
    reader.pause([(topic, 0)])
    assert sorted(reader.assignment()) == [(topic, 0), (topic, 1)]
    reader.read_from({})
    assert reader.assignment() == []


def take_never_waits(world: World) -> None:
    """`take` returns what has come, at most as much as is asked for."""
    topic = world.topic()
    world.put(topic, b"1", b"2", b"3")
    reader = world.reader(enable_partition_eof=False)
    assert reader.take(10) == []
    reader.read_from({(topic, 0): 0})
    taken = [reader.poll(LIMIT_S)]
    world.until(lambda: taken.extend(reader.take(1)) or len(taken) == 3)
    assert [record.offset() for record in taken] == [0, 1, 2]
    assert reader.take(10) == []


def a_pause_drops_what_was_fetched(world: World) -> None:
    """Nothing of a paused partition comes; after `resume` it continues behind the last record."""
    topic = world.topic(partitions=2)
    world.put(topic, b"1", b"2", b"3")
    world.put(topic, b"other", partition=1)
    reader = world.reader(enable_partition_eof=False)
    reader.read_from({(topic, 0): 0})
    assert reader.poll(LIMIT_S).offset() == 0
    reader.pause([(topic, 0)])
    assert reader.poll(6 * SLICE_S) is None
    assert reader.take(10) == []
    reader.resume([(topic, 0)])
    assert reader.poll(LIMIT_S).offset() == 1


def a_resumed_partition_tells_its_end_again(world: World) -> None:
    """After `pause` and `resume` at the end of a partition, the end is reported once more."""
    topic = world.topic()
    world.put(topic, b"1")
    reader = world.reader()
    reader.read_from({(topic, 0): 0})
    world.to_the_end(reader)
    reader.pause([(topic, 0)])
    reader.resume([(topic, 0)])
    world.to_the_end(reader)


def pauses_last_over_assignments(world: World) -> None:
    """A partition that was paused stays so when it is read from anew."""
    topic = world.topic()
    world.put(topic, b"1")
    reader = world.reader()
    reader.read_from({(topic, 0): 0})
    world.to_the_end(reader)
    reader.pause([(topic, 0)])
    reader.read_from({})
    reader.read_from({(topic, 0): 0})
    assert reader.poll(8 * SLICE_S) is None
    reader.resume([(topic, 0)])
    assert len(world.to_the_end(reader)) == 1


def reading_begins_where_it_is_assigned(world: World) -> None:
    """-2 is the log start and -1 the end, whatever auto.offset.reset says."""
    topic = world.topic()
    world.put(topic, b"1", b"2")
    reader = world.reader()
    reader.read_from({(topic, 0): BEGINNING})
    assert len(world.to_the_end(reader)) == 2
    reader.read_from({(topic, 0): _END})
    assert world.to_the_end(reader) == []


def offsets_beyond_the_log_are_refused(world: World) -> None:
    """With auto.offset.reset=error: AUTO_OFFSET_RESET at that offset, and then nothing."""
    topic = world.topic()
    world.put(topic, b"1")
    error, reader = _errors(world, {(topic, 0): 50})
    assert failure_of(error.error()).code == Code.AUTO_OFFSET_RESET
    assert (error.topic(), error.partition(), error.offset()) == (topic, 0, 50)
    assert reader.poll(4 * SLICE_S) is None


def deleted_offsets_are_refused(world: World) -> None:
    """So is an offset below the log start."""
    topic = world.topic()
    world.put(topic, b"1", b"2", b"3")
    world.delete_before((topic, 0), 2)
    assert world.edges(topic) == (2, 3, 3)
    error, _ = _errors(world, {(topic, 0): 1})
    assert failure_of(error.error()).code == Code.AUTO_OFFSET_RESET
    assert world.read(topic) == [(2, b"3")]


def a_reset_begins_elsewhere(world: World) -> None:
    """With earliest or latest, reading continues at the log start or at the end."""
    topic = world.topic()
    world.put(topic, b"1", b"2")
    for reset, expected in (("earliest", [0, 1]), ("latest", [])):
        reader = world.reader(auto_offset_reset=reset)
        reader.read_from({(topic, 0): 50})
        assert [record.offset() for record in world.to_the_end(reader)] == expected


def what_is_not_stored_is_an_error(world: World) -> None:
    """A reader that is to go on where the group left off, and the group has left off nowhere."""
    topic = world.topic()
    error, _ = _errors(world, {(topic, 0): _STORED})
    assert failure_of(error.error()).code == Code.AUTO_OFFSET_RESET
    world.reader().commit({(topic, 0): (0, "")})
    reader = world.reader()
    reader.read_from({(topic, 0): _STORED})
    assert world.to_the_end(reader) == []


def missing_topics_are_reported_when_asked(world: World) -> None:
    """`topic_failure` says why a topic cannot be read, and `ends` of no partition fails."""
    topic, none = world.topic(), world.name("none")
    reader = world.reader()
    assert reader.topic_failure(topic, LIMIT_S) is None
    failure = failure_of(reader.topic_failure(none, LIMIT_S))
    assert failure.code == Code.UNKNOWN_TOPIC_OR_PART
    assert failure_of(reader.topic_failure("a/b", LIMIT_S)).code == Code.TOPIC_EXCEPTION
    assert reader.ends((topic, 0), LIMIT_S) == (0, 0)
    assert refused(reader.ends, (topic, 9), LIMIT_S).code == Code.UNKNOWN_PARTITION
    assert refused(reader.ends, (none, 0), LIMIT_S).code == Code.UNKNOWN_PARTITION


def offsets_are_found_by_time(world: World) -> None:
    """The first record that is not older than the time, whatever comes before; else None."""
    topic = world.topic()
    world.put(topic, b"1", timestamp_ms=1_000)
    world.put(topic, b"2", timestamp_ms=3_000)
    world.put(topic, b"3", timestamp_ms=2_000)
    reader = world.reader()
    place = (topic, 0)
    for at_ms, expected in ((0, 0), (1_001, 1), (3_000, 1), (3_001, None)):
        assert reader.offsets_at({place: at_ms}, LIMIT_S) == {place: expected}
    assert refused(reader.offsets_at, {(world.name("none"), 0): 0}, LIMIT_S)


def missing_topics_are_read_in_silence(world: World) -> None:
    """Nothing comes of a partition that is not there, and no error either."""
    topic = world.topic()
    reader = world.reader()
    for place in ((topic, 7), (world.name("none"), 0)):
        reader.read_from({place: 0})
        assert reader.poll(6 * SLICE_S) is None


def closed_readers_are_refused(world: World) -> None:
    """Whoever uses a closed reader learns that by RuntimeError; closing twice is allowed."""
    reader: Reader = world.reader()
    reader.close()
    with pytest.raises(RuntimeError):
        reader.poll(0)
    with pytest.raises(RuntimeError):
        reader.take(1)
    reader.close()


CHECKS = (
    records_come_as_they_were_sent,
    append_time_is_the_brokers,
    ends_are_reported,
    ends_are_not_reported_unasked,
    the_end_of_read_committed_is_stable,
    positions_stand_behind_records,
    what_is_assigned_is_reported,
    take_never_waits,
    a_pause_drops_what_was_fetched,
    a_resumed_partition_tells_its_end_again,
    pauses_last_over_assignments,
    reading_begins_where_it_is_assigned,
    offsets_beyond_the_log_are_refused,
    deleted_offsets_are_refused,
    a_reset_begins_elsewhere,
    what_is_not_stored_is_an_error,
    missing_topics_are_reported_when_asked,
    offsets_are_found_by_time,
    missing_topics_are_read_in_silence,
    closed_readers_are_refused,
)
