"""What whoever asks brokers relies on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import NO_SUCH_TOPIC, Code
from halfbridge.kafka.ports import Edge, NewTopic, SeenPartition, SeenTopic
from tests.ports.world import LIMIT_S, World, refused

if TYPE_CHECKING:
    from collections.abc import Callable


def topics_are_described(world: World) -> None:
    """`topics` names partitions and replicas of each; `broker_count` how many brokers there are."""
    topic = world.topic(partitions=3)
    assert world.admin.topics(LIMIT_S)[topic] == SeenTopic(3, 1, in_sync=(1, 1, 1))
    assert world.name("none") not in world.admin.topics(LIMIT_S)
    assert world.admin.broker_count(LIMIT_S) == 1


def partitions_are_described(world: World) -> None:
    """`partitions` names the brokers of each; of a topic that is not there, nothing."""
    topic = world.topic(partitions=2)
    (broker,) = world.admin.ask_cluster(LIMIT_S).result().brokers
    place = SeenPartition(broker, (broker,), (broker,))
    none = world.name("none")
    assert world.admin.partitions([topic, none], LIMIT_S) == {topic: (place, place)}


def existing_topics_are_not_made_again(world: World) -> None:
    """TOPIC_ALREADY_EXISTS, of the one that is there; others are made."""
    topic, other = world.topic(), world.name("other")
    answers = world.admin.create_topics(
        [NewTopic(topic, 1, 1, {}), NewTopic(other, 1, 1, {})], LIMIT_S
    )
    assert refused(answers[topic].result).code == Code.TOPIC_ALREADY_EXISTS
    assert answers[other].result() is None
    world.until(lambda: other in world.admin.topics(LIMIT_S))


def impossible_topics_are_refused(world: World) -> None:
    """Too many replicas, a bad name, a setting that no topic has."""
    for new, expected in (
        (NewTopic(world.name("a"), 1, 99, {}), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("a/b", 1, 1, {}), "TOPIC_EXCEPTION"),
        (NewTopic(world.name("b"), 1, 1, {"no.such": "1"}), "INVALID_CONFIG"),
    ):
        answer = world.admin.create_topics([new], LIMIT_S)[new.name]
        assert refused(answer.result).name == expected


def topics_grow(world: World) -> None:
    """By partitions that are empty; never shrink; and only if they are there."""
    topic = world.topic()
    world.put(topic, b"1")
    assert world.admin.add_partitions(topic, 2, LIMIT_S).result() is None
    world.until(lambda: world.admin.topics(LIMIT_S)[topic].partitions == 2)
    world.until(lambda: world.edges(topic, 1) == (0, 0, 0))
    assert world.edges(topic, 0) == (0, 1, 1)
    failure = refused(world.admin.add_partitions(topic, 1, LIMIT_S).result)
    assert failure.name == "INVALID_PARTITIONS"
    failure = refused(world.admin.add_partitions(world.name("none"), 2, LIMIT_S).result)
    assert failure.code == Code.UNKNOWN_TOPIC_OR_PART


def three_edges(world: World) -> None:
    """START, STABLE_END and END of many places are answered each for itself."""
    topic = world.topic(partitions=2)
    world.put(topic, b"1", b"2", b"3")
    world.delete_before((topic, 0), 1)
    writer = world.transactional()
    writer.begin()
    world.send(writer, topic)
    places = [(topic, 0), (topic, 1)]
    for edge, expected in ((Edge.START, [1, 0]), (Edge.STABLE_END, [3, 0]), (Edge.END, [4, 0])):
        answers = world.admin.ask_ends(places, edge, LIMIT_S)
        assert [answers[place].result() for place in places] == expected
        assert all(answer.done() for answer in answers.values())
    writer.abort(LIMIT_S)


def ends_of_nothing_fail(world: World) -> None:
    """Of a partition that is not there: NOENT."""
    topic = world.topic()
    for place in ((topic, 9), (world.name("none"), 0)):
        answer = world.admin.ask_ends([place], Edge.END, LIMIT_S)[place]
        assert refused(answer.result).code == Code.NOENT


def answers_call_back(world: World) -> None:
    """`add_done_callback` is called once, with the answer, also when it is done already."""
    topic = world.topic()
    place = topic, 0
    answer = world.admin.ask_ends([place], Edge.END, LIMIT_S)[place]
    reported: list[Any] = []
    answer.add_done_callback(reported.append)
    world.until(lambda: reported)
    answer.add_done_callback(reported.append)
    assert [each.result() for each in reported] == [0, 0]


def settings_are_reported(world: World) -> None:
    """What a topic was made with, and Kafka's defaults of the rest."""
    topic = world.topic(max_message_bytes="2000", cleanup_policy="compact")
    settings = world.admin.ask_settings([topic], LIMIT_S)[topic].result()
    expected = {
        "max.message.bytes": "2000",
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": "1",
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "min.compaction.lag.ms": "0",
        "compression.type": "producer",
    }
    assert {name: settings[name] for name in expected} == expected


def settings_are_altered(world: World) -> None:
    """All that are given, or none; the others stay."""
    topic = world.topic(max_message_bytes="2000")
    wanted = {"retention.ms": "-1", "min.insync.replicas": "2"}
    assert world.admin.alter_settings(topic, wanted, LIMIT_S).result() is None
    expected = {"max.message.bytes": "2000", **wanted}

    def are_there(names: set[str]) -> dict[str, str]:
        reported = world.admin.ask_settings([topic], LIMIT_S)[topic].result()
        return {name: reported[name] for name in names}

    world.until(lambda: are_there(set(expected)) == expected)
    for bad in ({"retention.ms": "5", "no.such": "1"}, {"retention.ms": "much"}):
        answer = world.admin.alter_settings(topic, bad, LIMIT_S)
        assert refused(answer.result).name == "INVALID_CONFIG"
    assert are_there(set(expected)) == expected
    failure = refused(world.admin.alter_settings(world.name("none"), wanted, LIMIT_S).result)
    assert failure.code in NO_SUCH_TOPIC


def settings_of_nothing_fail(world: World) -> None:
    """Each topic is answered for itself."""
    topic, none = world.topic(), world.name("none")
    answers = world.admin.ask_settings([topic, none], LIMIT_S)
    assert answers[topic].result()["cleanup.policy"] == "delete"
    assert refused(answers[none].result).code in NO_SUCH_TOPIC


def rights_are_reported(world: World) -> None:
    """Where nothing is forbidden, a client may write; of no topic there are no rights."""
    topic, none = world.topic(), world.name("none")
    answers = world.admin.ask_rights([topic, none], LIMIT_S)
    assert answers[topic].result() is True
    assert refused(answers[none].result).code == Code.UNKNOWN_TOPIC_OR_PART


def records_are_deleted_from_the_start(world: World) -> None:
    """Each place for itself: what stands below the offset is gone, and the end stays."""
    topic = world.topic(partitions=2)
    world.put(topic, b"1", b"2", b"3")
    places = {(topic, 0): 2, (topic, 1): 0}
    answers = world.admin.delete_records(places, LIMIT_S)
    assert [answers[place].result() for place in places] == [None, None]
    assert world.edges(topic, 0) == (2, 3, 3)
    assert world.edges(topic, 1) == (0, 0, 0)
    reader = world.reader()
    reader.read_from({(topic, 0): 2})
    assert [record.value() for record in world.to_the_end(reader)] == [b"3"]
    none = (world.name("none"), 0)
    refused(world.admin.delete_records({none: 1}, LIMIT_S)[none].result)


def operations_are_reported(world: World) -> None:
    """Kafka's names of what may be done; of no topic, and of no group, there are none."""
    topic, none = world.topic(), world.name("none")
    answers = world.admin.ask_operations([topic, none], LIMIT_S)
    reported = answers[topic].result()
    assert reported is not None
    assert {"Read", "Write", "Describe", "DescribeConfigs"} <= reported
    assert refused(answers[none].result).code == Code.UNKNOWN_TOPIC_OR_PART


def topic_ids_are_of_one_topic_each(world: World) -> None:
    """An id is the same each time; of no topic there is none."""
    topic, other, none = world.topic(), world.topic("other"), world.name("none")
    asked = [world.admin.ask_topic_ids([topic, other, none], LIMIT_S) for _ in range(2)]
    first, second = ([answers[each].result() for each in (topic, other)] for answers in asked)
    assert first == second
    assert len({*first, ""}) == 3
    assert refused(asked[0][none].result).code == Code.UNKNOWN_TOPIC_OR_PART


def brokers_are_reported(world: World) -> None:
    """Each has an address, and settings."""
    brokers = world.admin.ask_cluster(LIMIT_S).result().brokers
    assert len(brokers) == world.admin.broker_count(LIMIT_S)
    for broker in brokers:
        settings = world.admin.ask_broker_settings(broker, LIMIT_S).result()
        assert int(settings["transaction.max.timeout.ms"]) > 0
        assert int(settings["offsets.retention.minutes"]) > 0


CHECKS: tuple[Callable[[World], None], ...] = (
    topics_are_described,
    partitions_are_described,
    existing_topics_are_not_made_again,
    impossible_topics_are_refused,
    topics_grow,
    three_edges,
    ends_of_nothing_fail,
    answers_call_back,
    settings_are_reported,
    settings_are_altered,
    settings_of_nothing_fail,
    rights_are_reported,
    topic_ids_are_of_one_topic_each,
    records_are_deleted_from_the_start,
    operations_are_reported,
    brokers_are_reported,
)
