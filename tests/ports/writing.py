"""What writers rely on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from halfbridge.kafka.errors import PURGED, Code, KafkaFailure
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.partitioner import partition_by_crc, partition_of
from tests.ports.world import LIMIT_S, SLICE_S, World, refused

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYS = [b"", b"a", b"order-1", b"order-2", b"\x00\xff", b"x" * 100]


def _code(reported: tuple[KafkaFailure | None, Any]) -> int:
    assert reported[0] is not None
    return reported[0].code


def acknowledgements_tell_where_records_stand(world: World) -> None:
    """Topic, partition, offset, timestamp, key and value; the headers are gone by then."""
    topic = world.topic()
    error, record = world.send(
        world.writer(), topic, b"v", key=b"k", headers=[("a", b"1")], timestamp_ms=1_700_000_000_000
    )
    assert error is None
    assert record.error() is None
    assert (record.topic(), record.partition(), record.offset()) == (topic, 0, 0)
    assert record.timestamp() == (1, 1_700_000_000_000)
    assert (record.key(), record.value(), record.headers()) == (b"k", b"v", None)


def acknowledgements_have_the_brokers_time(world: World) -> None:
    """With LogAppendTime the acknowledgement has the time that the record is stored with."""
    topic = world.topic(message_timestamp_type="LogAppendTime")
    _, reported = world.send(world.writer(), topic, timestamp_ms=5)
    reader = world.reader()
    reader.read_from({(topic, 0): 0})
    assert reported.timestamp() == reader.poll(LIMIT_S).timestamp()


def nothing_is_sent_behind_a_lost_record(world: World) -> None:
    """With enable.gapless.guarantee a record that is refused for good leaves no gap."""
    topic = world.topic(max_message_bytes="500")
    writer = world.writer(
        enable_gapless_guarantee=True, batch_num_messages=1, message_max_bytes=1_000_000
    )
    assert world.send(writer, topic, b"first")[0] is None
    reported: list[tuple[KafkaFailure | None, Any]] = []
    world.produce(writer, topic, b"large" * 400, reported)
    handed = 1 + sum(
        _is_taken(world, writer, topic, value, reported) for value in (b"behind", b"more")
    )
    world.until(lambda: _polled(writer) or reported)
    assert _code(reported[0]) == Code.MSG_SIZE_TOO_LARGE
    writer.purge()
    world.until(lambda: _polled(writer) or len(reported) == handed)
    assert all(error is not None for error, _ in reported)
    assert [value for _, value in world.read(topic)] == [b"first"]
    assert refused(world.produce, writer, topic, b"later", reported).code == Code.FATAL


def _is_taken(world: World, writer: Any, topic: str, value: bytes, reported: list[Any]) -> bool:
    """Tell whether the client takes a record: not once it has heard of the lost one."""
    try:
        world.produce(writer, topic, value, reported)
    except KafkaFailure as failure:
        if failure.code != Code.FATAL:
            raise
        return False
    return True


def _polled(writer: Any) -> None:
    """Serve acknowledgements; a fatal error is none."""
    with suppress(KafkaFailure):
        writer.poll(SLICE_S)


def callbacks_come_in_poll(world: World) -> None:
    """Until `poll` or `flush` is called, a record counts, and its callback does not come."""
    topic = world.topic()
    writer, reported = world.writer(), []
    world.produce(writer, topic, b"1", reported)
    world.until(lambda: world.edges(topic)[2] == 1)
    assert reported == []
    assert len(writer) > 0
    world.until(lambda: writer.poll(SLICE_S))
    assert (len(writer), len(reported)) == (0, 1)
    assert writer.flush(LIMIT_S) == 0


def keys_are_placed_as_java_does(world: World) -> None:
    """With murmur2_random a keyed record goes where Java's producers put its key."""
    topic = world.topic(partitions=5)
    writer = world.writer(partitioner="murmur2_random")
    for key in _KEYS:
        _, record = world.send(writer, topic, key=key, partition=-1)
        assert record.partition() == partition_of(key, 5), key


def keys_are_placed_by_crc_by_default(world: World) -> None:
    """Without a partitioner a keyed record goes where CRC-32 says."""
    topic = world.topic(partitions=5)
    writer = world.writer()
    for key in _KEYS[1:]:  # librdkafka places an empty key anywhere
        _, record = world.send(writer, topic, key=key, partition=-1)
        assert record.partition() == partition_by_crc(key, 5), key


def order_holds_within_a_partition(world: World) -> None:
    """Records of one writer stand in the order in which they were handed over."""
    topic = world.topic()
    writer, reported = world.writer(), []
    for number in range(100):
        world.produce(writer, topic, b"%d" % number, reported)
    assert writer.flush(LIMIT_S) == 0
    assert [record.offset() for _, record in reported] == list(range(100))
    assert [int(value or b"") for _, value in world.read(topic)] == list(range(100))


def a_missing_partition_is_refused(world: World) -> None:
    """By the callback while the topic is new to the client, at once when it is known."""
    topic = world.topic()
    writer = world.writer()
    error, record = world.send(writer, topic, partition=9)
    assert error is not None
    assert error.code == Code.UNKNOWN_PARTITION
    assert record.offset() is None
    assert record.timestamp() == (0, -1)
    world.send(writer, topic)
    with pytest.raises(KafkaFailure) as raised:
        world.send(writer, topic, partition=9)
    assert raised.value.code == Code.UNKNOWN_PARTITION
    assert len(writer) == 0


def a_missing_topic_is_refused(world: World) -> None:
    """By the callback at first, at once when the client has found out."""
    writer = world.writer(topic_metadata_propagation_max_ms=500)
    none = world.name("none")
    assert _code(world.send(writer, none)) == Code.UNKNOWN_TOPIC_OR_PART
    with pytest.raises(KafkaFailure) as raised:
        world.send(writer, none)
    assert raised.value.code == Code.UNKNOWN_TOPIC


def too_large_for_the_client(world: World) -> None:
    """What message.max.bytes does not allow is not even taken."""
    topic = world.topic()
    writer = world.writer(message_max_bytes=2_000)
    with pytest.raises(KafkaFailure) as raised:
        world.send(writer, topic, b"v" * 3_000)
    assert raised.value.code == Code.MSG_SIZE_TOO_LARGE
    assert len(writer) == 0


def too_large_for_the_topic(world: World) -> None:
    """What max.message.bytes does not allow fails by the callback, and nothing else does."""
    topic = world.topic(max_message_bytes="2000")
    writer = world.writer()
    assert _code(world.send(writer, topic, b"v" * 3_000)) == Code.MSG_SIZE_TOO_LARGE
    assert world.send(writer, topic, b"v" * 1_500)[0] is None
    assert world.read(topic) == [(0, b"v" * 1_500)]


def compacted_topics_want_keys(world: World) -> None:
    """A record without a key is refused as INVALID_RECORD."""
    topic = world.topic(cleanup_policy="compact")
    writer = world.writer()
    assert _code(world.send(writer, topic)) == Code.INVALID_RECORD
    assert world.send(writer, topic, key=b"k")[0] is None


def untimely_records_are_refused(world: World) -> None:
    """A single record's error names the reason (INVALID_TIMESTAMP); that of several does not."""
    topic = world.topic(message_timestamp_before_max_ms="1000")
    assert _code(world.send(world.writer(), topic, timestamp_ms=5)) == Code.INVALID_TIMESTAMP
    writer, reported = world.writer(linger_ms=200), []
    for _ in range(2):
        world.produce(writer, topic, b"v", reported, timestamp_ms=5)
    writer.flush(LIMIT_S)
    assert [_code(each) for each in reported] == [Code.INVALID_RECORD] * 2


def a_full_queue_is_reported(world: World) -> None:
    """BufferError once queue.buffering.max.messages records wait; `poll` makes room."""
    topic = world.topic()
    writer, reported = world.writer(queue_buffering_max_messages=2), []
    for _ in range(2):
        world.produce(writer, topic, b"v", reported)
    with pytest.raises(BufferError):
        world.produce(writer, topic, b"v", reported)
    world.until(lambda: writer.poll(SLICE_S))
    writer.flush(LIMIT_S)
    world.produce(writer, topic, b"v", reported)
    assert writer.flush(LIMIT_S) == 0
    assert [error for error, _ in reported] == [None] * 3


def purged_records_fail(world: World) -> None:
    """Each record that was given up is reported as failed, and is not stored later."""
    topic = world.topic()
    writer, reported = world.writer(linger_ms=5_000), []
    for _ in range(3):
        world.produce(writer, topic, b"v", reported)
    writer.purge()
    assert reported == []
    world.until(lambda: (writer.poll(SLICE_S), len(reported) == 3)[1])
    assert {_code(each) for each in reported} <= PURGED
    assert len(writer) == 0
    assert world.edges(topic)[2] == 0
    assert world.send(world.writer(), topic)[1].offset() == 0


def closed_writers_are_refused(world: World) -> None:
    """`close` gives up at once what is not acknowledged; later calls raise RuntimeError."""
    topic = world.topic()
    writer, reported = world.writer(linger_ms=5_000), []
    world.produce(writer, topic, b"v", reported)
    writer.close()
    assert {_code(each) for each in reported} <= PURGED
    assert len(writer) == 0
    for use in (lambda: world.produce(writer, topic, b"v", reported), lambda: writer.poll(0)):
        with pytest.raises(RuntimeError):
            use()
    writer.close()
    assert world.edges(topic)[2] == 0


def a_writer_sees_topics(world: World) -> None:
    """`topics` names partitions and replicas."""
    topic = world.topic(partitions=3)
    assert world.writer().topics(LIMIT_S)[topic] == SeenTopic(3, 1, in_sync=(1, 1, 1))


CHECKS: tuple[Callable[[World], None], ...] = (
    acknowledgements_tell_where_records_stand,
    acknowledgements_have_the_brokers_time,
    nothing_is_sent_behind_a_lost_record,
    callbacks_come_in_poll,
    keys_are_placed_as_java_does,
    keys_are_placed_by_crc_by_default,
    order_holds_within_a_partition,
    a_missing_partition_is_refused,
    a_missing_topic_is_refused,
    too_large_for_the_client,
    too_large_for_the_topic,
    compacted_topics_want_keys,
    untimely_records_are_refused,
    a_full_queue_is_reported,
    purged_records_fail,
    closed_writers_are_refused,
    a_writer_sees_topics,
)
