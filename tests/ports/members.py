"""What members of groups, and whoever commits offsets, rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code
from halfbridge.kafka.ports import Committed
from tests.ports.world import LIMIT_S, SLICE_S, Joined, World, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.kafka.errors import KafkaFailure

_ONE, _TWO = {"group_instance_id": "one"}, {"group_instance_id": "two"}


def _refusal(world: World, topic: str, member: object) -> KafkaFailure:
    """Return the error of a kafka_txn that commits offsets for a member."""
    writer = world.transactional("refused")
    writer.begin()
    failure = refused(writer.send_offsets, [(topic, 0, 1, "")], member, LIMIT_S)
    assert failure.requires_abort
    writer.abort(LIMIT_S)
    return failure


def offsets_have_metadata(world: World) -> None:
    """What was committed is found with its metadata; where nothing was, NO_COMMITTED_OFFSET."""
    topic = world.topic(partitions=3)
    reader = world.reader()
    places = [(topic, number) for number in range(3)]
    assert set(reader.committed(places, LIMIT_S).values()) == {Committed(-1001, None)}
    reader.commit({places[0]: (7, "text"), places[1]: (0, "")})
    assert reader.committed(places, LIMIT_S) == {
        places[0]: Committed(7, "text"),
        places[1]: Committed(0, ""),
        places[2]: Committed(-1001, None),
    }


def bad_commits_are_refused(world: World) -> None:
    """Metadata that are too large, and a topic that is not there."""
    topic = world.topic()
    reader = world.reader()
    failure = refused(reader.commit, {(topic, 0): (1, "m" * 5_000)})
    assert failure.name == "OFFSET_METADATA_TOO_LARGE"
    failure = refused(reader.commit, {(world.name("none"), 0): (1, "")})
    assert failure.code == Code.UNKNOWN_TOPIC_OR_PART
    assert world.committed(topic) == (-1001, None)


def strangers_commit_for_empty_groups_only(world: World) -> None:
    """While a member lives, only members commit outside a kafka_txn."""
    topic = world.topic()
    joined = Joined(world, [topic], **_ONE).wait()
    failure = refused(world.reader().commit, {(topic, 0): (1, "")})
    assert failure.code == Code.UNKNOWN_MEMBER_ID
    joined.member.commit({(topic, 0): (2, "")})
    assert world.committed(topic) == (2, "")


def partitions_are_dealt_out_in_ranges(world: World) -> None:
    """Each topic for itself: the first members, by their instance ids, have one more."""
    topics = [world.topic("a", partitions=3), world.topic("b", partitions=1)]
    one, two = Joined(world, topics, **_ONE), Joined(world, topics, **_TWO)
    expected = (
        {(topics[0], 0), (topics[0], 1), (topics[1], 0)},
        {(topics[0], 2)},
    )

    def are_dealt_out() -> bool:
        one.member.poll(SLICE_S)
        two.member.poll(SLICE_S)
        return (one.assigned[-1:], two.assigned[-1:]) == tuple([each] for each in expected)

    world.until(are_dealt_out)


def a_rebalance_revokes_first(world: World) -> None:
    """A member that shares with a new one gives up all, and is assigned anew."""
    topic = world.topic(partitions=2)
    one = Joined(world, [topic], **_ONE).wait()
    two = Joined(world, [topic], **_TWO).wait(1, one)
    one.wait(2, two)
    both = frozenset({(topic, 0), (topic, 1)})
    assert one.assigned[:2] == [both, None]
    assert one.assigned[-1] == frozenset({(topic, 0)})
    assert two.assigned[-1] == frozenset({(topic, 1)})
    assert _refusal(world, topic, one.memberships[0]).code == Code.ILLEGAL_GENERATION


def what_callbacks_read_from_is_read(world: World) -> None:
    """Only where `on_assigned` calls `read_from`, and only what that says."""
    topic = world.topic()
    world.put(topic, b"1", b"2")
    joined = Joined(world, [topic], **_ONE)
    joined.reads_from = {(topic, 0): 1}
    world.until(lambda: (record := joined.member.poll(SLICE_S)) and record.offset() == 1)
    silent = Joined(world, [topic], **_TWO, group_id=world.name("other")).wait()
    assert silent.member.assignment() == []
    assert silent.member.poll(4 * SLICE_S) is None


def a_restarted_member_has_its_place(world: World) -> None:
    """A static member that closes and comes back has its partitions, in the same generation.

    Its close calls nothing back.
    """
    topic = world.topic(partitions=2)
    one = Joined(world, [topic], **_ONE).wait()
    two = Joined(world, [topic], **_TWO).wait(1, one)
    one.wait(2, two)
    reported = list(one.assigned)
    one.member.close()
    assert one.assigned == reported
    assignments = len(two.assigned)
    again = Joined(world, [topic], **_ONE).wait(1, two)
    assert again.assigned == [frozenset({(topic, 0)})]
    assert len(two.assigned) == assignments
    assert _refusal(world, topic, one.memberships[-1]).code == Code.FENCED_INSTANCE_ID


def who_takes_a_place_fences(world: World) -> None:
    """The one before gets a fatal error in place of a record, once, and from its commits."""
    topic = world.topic()
    old = Joined(world, [topic], **_ONE).wait()
    new = Joined(world, [topic], **_ONE).wait()
    error = world.next_error(old.member)
    failure = failure_of(error.error())
    assert failure.code == Code.FATAL
    assert "fenced" in failure.text.lower()
    assert error.topic() is None
    assert old.member.poll(4 * SLICE_S) is None
    assert refused(old.member.commit, {(topic, 0): (1, "")}).code == Code.FATAL
    assert _refusal(world, topic, old.memberships[-1]).code == Code.FENCED_INSTANCE_ID
    assert refused(old.member.leave).code == Code.FATAL
    old.member.close()
    assert old.assigned == [frozenset({(topic, 0)})]
    assert new.member.poll(4 * SLICE_S) is None


def commits_are_of_a_generation(world: World) -> None:
    """Outside a kafka_txn too: as of a generation that is over nothing is committed."""
    topic = world.topic(partitions=2)
    place = topic, 0
    one = Joined(world, [topic], **_ONE).wait()
    one.member.commit_as({place: (1, "first")}, one.memberships[0])
    assert world.committed(topic) == (1, "first")
    two = Joined(world, [topic], **_TWO).wait(1, one)
    one.wait(2, two)
    failure = refused(one.member.commit_as, {place: (2, "late")}, one.memberships[0])
    assert failure.code == Code.ILLEGAL_GENERATION
    assert world.committed(topic) == (1, "first")
    one.member.commit_as({place: (3, "now")}, one.memberships[-1])
    assert world.committed(topic) == (3, "now")


def a_fenced_member_commits_nothing(world: World) -> None:
    """Whether it has heard of its successor or not."""
    topic = world.topic()
    old = Joined(world, [topic], **_ONE).wait()
    new = Joined(world, [topic], **_ONE).wait()
    failure = refused(old.member.commit_as, {(topic, 0): (1, "")}, old.memberships[-1])
    assert failure.code in {Code.FENCED_INSTANCE_ID, Code.FATAL}
    world.next_error(old.member)
    failure = refused(old.member.commit_as, {(topic, 0): (1, "")}, old.memberships[-1])
    assert failure.code == Code.FATAL
    new.member.commit_as({(topic, 0): (2, "")}, new.memberships[-1])
    assert world.committed(topic) == (2, "")


def the_newer_commit_stands(world: World) -> None:
    """Of one in a kafka_txn and one behind it: also before the first one's marker has arrived."""
    topic = world.topic()
    joined = Joined(world, [topic], **_ONE).wait()
    writer = world.transactional()
    for offset in range(0, 40, 2):
        writer.begin()
        writer.send_offsets([(topic, 0, offset, "")], joined.memberships[-1], LIMIT_S)
        writer.commit(LIMIT_S)
        joined.member.commit_as({(topic, 0): (offset + 1, "")}, joined.memberships[-1])
        assert world.committed(topic) == (offset + 1, "")


def before_it_joins_a_member_is_nobody(world: World) -> None:
    """Without a generation, offsets are taken by an empty group, and fenced by other members."""
    topic = world.topic()
    before = world.member(**_ONE).membership()
    writer = world.transactional()
    writer.begin()
    writer.send_offsets([(topic, 0, 1, "")], before, LIMIT_S)
    writer.abort(LIMIT_S)
    two = Joined(world, [topic], **_TWO).wait()
    assert _refusal(world, topic, before).code == Code.UNKNOWN_MEMBER_ID
    Joined(world, [topic], **_ONE).wait(1, two)
    assert _refusal(world, topic, before).code == Code.FENCED_INSTANCE_ID


def a_member_leaves(world: World) -> None:
    """After `leave` it is revoked in `poll`, and the group knows it no more."""
    topic = world.topic()
    joined = Joined(world, [topic], **_ONE).wait()
    joined.member.leave()
    world.until(lambda: (joined.member.poll(SLICE_S), joined.assigned[-1] is None)[1])
    world.until(lambda: not world.admin.ask_members(world.group, LIMIT_S).result())
    assert _refusal(world, topic, joined.memberships[-1]).code == Code.UNKNOWN_MEMBER_ID


def a_dynamic_member_leaves_when_closed(world: World) -> None:
    """A static one does not."""
    topic = world.topic()
    Joined(world, [topic]).wait().member.close()
    world.until(lambda: not world.admin.ask_members(world.group, LIMIT_S).result())
    Joined(world, [topic], **_ONE).wait().member.close()
    (name,) = world.admin.ask_members(world.group, LIMIT_S).result()
    assert name.startswith("one on ")


def a_silent_member_is_out(world: World) -> None:
    """A member that is closed without leaving is out after its session."""
    topic = world.topic()
    one = Joined(world, [topic], **_ONE).wait()
    one.member.close()
    two = Joined(world, [topic], **_TWO).wait()
    world.until(lambda: (two.member.poll(SLICE_S), two.assigned[-1])[1] == {(topic, 0)})
    assert _refusal(world, topic, one.memberships[-1]).code == Code.UNKNOWN_MEMBER_ID


def a_member_goes_on_where_the_group_left_off(world: World) -> None:
    """`join_and_read` reads from committed offsets, and commits by itself when it closes."""
    topic = world.topic()
    world.put(topic, b"1", b"2", b"3")
    properties = {"enable_auto_commit": True, "auto_offset_reset": "earliest"}
    seen: list[Any] = []
    for expected in (3, 4):
        member = world.member(**properties)
        member.join_and_read([topic])
        world.until(lambda reads=member, want=expected: _took(reads, seen) == want)
        member.close()
        world.put(topic, b"more")
    assert seen == [0, 1, 2, 3]
    assert world.committed(topic) == (4, None)


def what_is_read_is_committed_by_itself(world: World) -> None:
    """A member with enable.auto.commit commits at its interval, while it is polled."""
    topic = world.topic()
    world.put(topic, b"1", b"2")
    member = world.member(
        enable_auto_commit=True, auto_commit_interval_ms=200, auto_offset_reset="earliest"
    )
    member.join_and_read([topic])
    world.until(lambda: member.poll(SLICE_S) is None and world.committed(topic) == (2, None))


def a_member_skips(world: World) -> None:
    """It reads on from the offset, whatever it has fetched."""
    topic = world.topic()
    world.put(topic, *(b"%d" % number for number in range(9)))
    member = world.member(auto_offset_reset="earliest")
    member.join_and_read([topic])
    seen: list[Any] = []
    world.until(lambda: _took(member, seen) == 1)
    member.skip_to((topic, 0), 8)
    world.until(lambda: _took(member, seen) == 2)
    assert seen == [0, 8]


def a_missing_topic_is_reported_to_members(world: World) -> None:
    """A topic that is subscribed to and is not there is an error in place of a record."""
    member = world.member(auto_offset_reset="earliest")
    none = world.name("none")
    member.join_and_read([none])
    error = world.next_error(member)
    assert failure_of(error.error()).code == Code.UNKNOWN_TOPIC_OR_PART
    assert error.topic() == none


def new_partitions_are_noticed(world: World) -> None:
    """A member is assigned partitions that a topic grows by."""
    topic = world.topic()
    joined = Joined(world, [topic], **_ONE, topic_metadata_refresh_interval_ms=500).wait()
    world.admin.add_partitions(topic, 2, LIMIT_S).result()
    joined.wait(2)
    assert joined.assigned[-1] == frozenset({(topic, 0), (topic, 1)})


def _took(member: Any, seen: list[Any]) -> int:
    record = member.poll(SLICE_S)
    if record is not None and record.error() is None:
        seen.append(record.offset())
    return len(seen)


CHECKS: tuple[Callable[[World], None], ...] = (
    offsets_have_metadata,
    bad_commits_are_refused,
    strangers_commit_for_empty_groups_only,
    partitions_are_dealt_out_in_ranges,
    a_rebalance_revokes_first,
    what_callbacks_read_from_is_read,
    a_restarted_member_has_its_place,
    who_takes_a_place_fences,
    commits_are_of_a_generation,
    a_fenced_member_commits_nothing,
    the_newer_commit_stands,
    before_it_joins_a_member_is_nobody,
    a_member_leaves,
    a_dynamic_member_leaves_when_closed,
    a_silent_member_is_out,
    a_member_goes_on_where_the_group_left_off,
    what_is_read_is_committed_by_itself,
    a_member_skips,
    a_missing_topic_is_reported_to_members,
    new_partitions_are_noticed,
)
