"""What transactional writers rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import Code, KafkaFailure, ProducerFencedError, bridge_error
from tests.ports.world import LIMIT_S, SLICE_S, Joined, World, refused

if TYPE_CHECKING:
    from collections.abc import Callable

_INCONSISTENT = -149
_SHORT_S = 1.0


def _begun(world: World, topic: str, *values: bytes, writer: Any = None) -> Any:
    """Return a writer in a kafka_txn that has stored some records."""
    writer = world.transactional() if writer is None else writer
    writer.begin()
    for value in values:
        assert world.send(writer, topic, value)[0] is None
    return writer


def _is_fenced(failure: KafkaFailure) -> bool:
    flags = failure.is_fatal, failure.requires_abort, failure.is_retriable
    assert isinstance(bridge_error(failure), ProducerFencedError)
    return failure.code == Code.FENCED and flags == (True, False, False)


def _must_abort(failure: KafkaFailure) -> int:
    flags = failure.is_fatal, failure.requires_abort, failure.is_retriable
    assert flags == (False, True, False), failure
    return failure.code


def visible_after_the_commit_only(world: World) -> None:
    """A kafka_txn's records are shown to read_committed readers when it is committed."""
    topic = world.topic()
    writer = _begun(world, topic, b"1", b"2")
    assert world.read(topic) == []
    assert world.read(topic, is_committed=False) == [(0, b"1"), (1, b"2")]
    writer.commit(LIMIT_S)
    world.settle(topic)
    assert world.read(topic) == [(0, b"1"), (1, b"2")]


def never_visible_after_an_abort(world: World) -> None:
    """Aborted records are passed over, whatever is committed around them."""
    topic = world.topic()
    writer = _begun(world, topic, b"gone")
    writer.abort(LIMIT_S)
    _begun(world, topic, b"kept", writer=writer).commit(LIMIT_S)
    world.settle(topic)
    assert [value for _, value in world.read(topic)] == [b"kept"]
    assert [value for _, value in world.read(topic, is_committed=False)] == [b"gone", b"kept"]


def an_open_kafka_txn_holds_readers(world: World) -> None:
    """Readers stop at the first record of the oldest open kafka_txn."""
    topic = world.topic()
    world.put(topic, b"before")
    writer = _begun(world, topic, b"open")
    world.put(topic, b"after")
    assert world.edges(topic) == (0, 1, 3)
    assert world.read(topic) == [(0, b"before")]
    writer.commit(LIMIT_S)
    world.settle(topic)
    assert world.edges(topic) == (0, 4, 4)
    assert [value for _, value in world.read(topic)] == [b"before", b"open", b"after"]


def markers_take_an_offset(world: World) -> None:
    """The record after a kafka_txn's end stands one further on; so does the end."""
    topic = world.topic()
    _begun(world, topic, b"1").commit(LIMIT_S)
    world.settle(topic)
    assert world.edges(topic) == (0, 2, 2)
    assert world.put(topic, b"2") == [2]


def several_partitions_end_together(world: World) -> None:
    """A kafka_txn may cover partitions of several topics; an empty one leaves nothing behind."""
    topics = [world.topic("one"), world.topic("two")]
    writer = _begun(world, topics[0], b"1")
    world.send(writer, topics[1])
    writer.commit(LIMIT_S)
    writer.begin()
    writer.commit(LIMIT_S)
    writer.begin()
    writer.abort(LIMIT_S)
    for topic in topics:
        world.settle(topic)
        assert world.edges(topic) == (0, 2, 2)


def a_commit_serves_callbacks(world: World) -> None:
    """`commit` waits for acknowledgements, and calls back, without any `poll`."""
    topic = world.topic()
    writer, reported = world.transactional(), []
    writer.begin()
    world.produce(writer, topic, b"v", reported)
    writer.commit(LIMIT_S)
    assert [(error, record.offset()) for error, record in reported] == [(None, 0)]
    assert len(writer) == 0


def calls_out_of_turn_are_refused(world: World) -> None:
    """What does not fit the state raises STATE, and breaks nothing."""
    topic = world.topic()
    writer = world.transactional()
    for call in (lambda: writer.init(LIMIT_S), lambda: writer.commit(LIMIT_S),
                 lambda: writer.abort(LIMIT_S), lambda: world.send(writer, topic)):  # fmt: skip
        assert refused(call).code == Code.STATE
    writer.begin()
    assert refused(writer.begin).code == Code.STATE
    world.send(writer, topic)
    writer.commit(LIMIT_S)
    new = world.ports.kafka.transactional_writer(
        {**world.common, "transactional.id": world.name("b")}
    )
    assert refused(new.begin).code == Code.STATE


def a_successor_aborts_and_fences(world: World) -> None:
    """Who takes an id over aborts what is open; the predecessor's commit fails for good."""
    topic = world.topic()
    zombie = _begun(world, topic, b"old")
    successor = world.transactional()
    world.settle(topic)
    assert world.read(topic) == []
    assert _is_fenced(refused(zombie.commit, LIMIT_S))
    for call in (lambda: zombie.abort(LIMIT_S), zombie.begin, lambda: zombie.commit(LIMIT_S)):
        assert _is_fenced(refused(call))
    assert refused(world.send, zombie, topic).code == Code.FATAL
    _begun(world, topic, b"new", writer=successor).commit(LIMIT_S)
    world.settle(topic)
    assert [value for _, value in world.read(topic)] == [b"new"]


def a_fenced_writers_records_are_refused(world: World) -> None:
    """A record of an old epoch fails with INVALID_PRODUCER_EPOCH, and its writer for good.

    The client library may lose that one callback to the fatal error.
    """
    topic = world.topic()
    zombie = _begun(world, topic, b"old")
    world.transactional()
    reported: list[Any] = []
    world.produce(zombie, topic, b"more", reported)
    failure = refused(zombie.flush, LIMIT_S)
    assert failure.is_fatal
    assert {error.code for error, _ in reported} <= {Code.INVALID_PRODUCER_EPOCH}
    assert _is_fenced(refused(zombie.commit, LIMIT_S))
    assert [value for _, value in world.read(topic, is_committed=False)] == [b"old"]


def a_fenced_writer_begins_in_vain(world: World) -> None:
    """With nothing open it learns of its fate by its first record."""
    topic = world.topic()
    zombie = world.transactional()
    world.transactional()
    zombie.begin()
    world.produce(zombie, topic, b"v", [])
    assert refused(zombie.flush, LIMIT_S).is_fatal
    assert _is_fenced(refused(zombie.commit, LIMIT_S))
    assert world.edges(topic)[2] == 0


def open_for_too_long(world: World) -> None:
    """The broker aborts a kafka_txn after its time-out, and fences the writer."""
    topic = world.topic()
    writer = world.transactional(transaction_timeout_ms=1_000)
    _begun(world, topic, b"late", writer=writer)
    world.settle(topic)
    assert world.read(topic) == []
    assert _is_fenced(refused(writer.commit, LIMIT_S))


def a_refused_record_forbids_the_commit(world: World) -> None:
    """A commit fails with the broker's word, and must be aborted; then the writer continues."""
    topic, small = world.topic(), world.topic("small", max_message_bytes="1000")
    writer = _begun(world, topic, b"1")
    error, _ = world.send(writer, small, b"v" * 3_000)
    assert error is not None
    assert error.code == Code.MSG_SIZE_TOO_LARGE
    assert refused(world.send, writer, topic).code == Code.STATE
    assert _must_abort(refused(writer.commit, LIMIT_S)) == Code.MSG_SIZE_TOO_LARGE
    assert _must_abort(refused(writer.begin)) == Code.MSG_SIZE_TOO_LARGE
    writer.abort(LIMIT_S)
    _begun(world, topic, b"2", writer=writer).commit(LIMIT_S)
    world.settle(topic)
    assert [value for _, value in world.read(topic)] == [b"2"]


def untimely_records_forbid_the_commit(world: World) -> None:
    """Each of several is merely invalid; the kafka_txn says why (INVALID_TIMESTAMP)."""
    topic = world.topic(message_timestamp_before_max_ms="1000")
    writer, reported = world.transactional(linger_ms=200), list[Any]()
    writer.begin()
    for _ in range(2):
        world.produce(writer, topic, b"v", reported, timestamp_ms=5)
    writer.flush(LIMIT_S)
    assert [error.code for error, _ in reported] == [Code.INVALID_RECORD] * 2
    assert _must_abort(refused(writer.commit, LIMIT_S)) == Code.INVALID_TIMESTAMP


def a_missing_topic_forbids_the_commit(world: World) -> None:
    """Of what no broker refused the client says INCONSISTENT."""
    writer = world.transactional(topic_metadata_propagation_max_ms=500)
    writer.begin()
    error, _ = world.send(writer, world.name("none"))
    assert error is not None
    assert error.code == Code.UNKNOWN_TOPIC_OR_PART
    assert _must_abort(refused(writer.commit, LIMIT_S)) == _INCONSISTENT
    writer.abort(LIMIT_S)
    writer.begin()


def purged_records_forbid_the_commit(world: World) -> None:
    """So it says of records that were given up."""
    topic = world.topic()
    writer, reported = world.transactional(linger_ms=5_000), []
    writer.begin()
    world.produce(writer, topic, b"v", reported)
    writer.purge()
    world.until(lambda: (writer.poll(SLICE_S), reported)[1])
    assert _must_abort(refused(writer.commit, LIMIT_S)) == _INCONSISTENT
    writer.abort(LIMIT_S)


def a_commit_that_times_out_is_repeated(world: World) -> None:
    """TIMED_OUT is retriable and leaves all open; until a commit succeeds nothing else may come."""
    topic, none = world.topic(), world.name("none")
    writer = _begun(world, topic, b"1")
    reported: list[Any] = []
    world.produce(writer, none, b"v", reported)
    failure = refused(writer.commit, _SHORT_S)
    assert (failure.code, failure.is_retriable) == (Code.TIMED_OUT, True)
    assert not failure.requires_abort
    for call in (lambda: writer.abort(_SHORT_S), writer.begin):
        assert refused(call).name == "_CONFLICT"
    assert refused(writer.commit, _SHORT_S).code == Code.TIMED_OUT


def offsets_are_pending_until_the_end(world: World) -> None:
    """Who wants stable offsets waits for an open kafka_txn that commits some."""
    topic = world.topic()
    joined = Joined(world, [topic]).wait()
    writer = world.transactional()
    place = topic, 0
    for offset, text, is_commit, then in ((1, "first", True, (1, "first")),
                                          (2, "second", False, (1, "first"))):  # fmt: skip
        writer.begin()
        writer.send_offsets([(topic, 0, offset, text)], joined.memberships[-1], LIMIT_S)
        failure = refused(world.reader().committed, [place], _SHORT_S)
        assert failure.code == Code.TIMED_OUT
        before = world.committed(topic, isolation_level="read_uncommitted")
        assert before == ((-1001, None) if is_commit else (1, "first"))
        (writer.commit if is_commit else writer.abort)(LIMIT_S)
        assert world.committed(topic) == then


def the_newer_offset_commit_stands(world: World) -> None:
    """Of the commits of two writers in turn, the newer one is found."""
    topic = world.topic()
    joined = Joined(world, [topic]).wait()
    writers = [world.transactional("a"), world.transactional("b")]
    for offset in range(6):
        writer = writers[offset % 2]
        writer.begin()
        offsets = [(topic, 0, offset, f"number {offset}")]
        writer.send_offsets(offsets, joined.memberships[-1], LIMIT_S)
        writer.commit(LIMIT_S)
    assert world.committed(topic) == (5, "number 5")


def bad_offsets_must_be_aborted(world: World) -> None:
    """Metadata that are too large, and what the group refuses, forbid the commit."""
    topic = world.topic()
    joined = Joined(world, [topic]).wait()
    writer = world.transactional()
    writer.begin()
    offsets = [(topic, 0, 1, "m" * 5_000)]
    failure = refused(writer.send_offsets, offsets, joined.memberships[-1], LIMIT_S)
    assert _must_abort(failure) == 12  # OFFSET_METADATA_TOO_LARGE
    assert failure.name == "OFFSET_METADATA_TOO_LARGE"
    assert _must_abort(refused(writer.commit, LIMIT_S)) == 12
    writer.abort(LIMIT_S)
    assert world.committed(topic) == (-1001, None)


CHECKS: tuple[Callable[[World], None], ...] = (
    visible_after_the_commit_only,
    never_visible_after_an_abort,
    an_open_kafka_txn_holds_readers,
    markers_take_an_offset,
    several_partitions_end_together,
    a_commit_serves_callbacks,
    calls_out_of_turn_are_refused,
    a_successor_aborts_and_fences,
    a_fenced_writers_records_are_refused,
    a_fenced_writer_begins_in_vain,
    open_for_too_long,
    a_refused_record_forbids_the_commit,
    untimely_records_forbid_the_commit,
    a_missing_topic_forbids_the_commit,
    purged_records_forbid_the_commit,
    a_commit_that_times_out_is_repeated,
    offsets_are_pending_until_the_end,
    the_newer_offset_commit_stands,
    bad_offsets_must_be_aborted,
)
