"""Settings that internal topics must have, and the problems reported for deviations."""

from dataclasses import replace

import pytest

from halfbridge.checker.admin.shape import Layout, Problem, SeenTopic, find_problems, wanted_topics
from halfbridge.serde.topics import (
    COPY_BYTES,
    MESSAGE_BYTES_MAX,
    HalfShape,
    TopicNames,
    check_topic_settings,
    manifest_topic_settings,
)

NAMES = TopicNames("eu.")
LAYOUT = Layout(partitions=4, replication_factor=3, producer_groups=("g",))
WANTED = wanted_topics(NAMES, LAYOUT)


def _as_wanted() -> dict[str, SeenTopic]:
    return {
        shape.name: SeenTopic(
            shape.partitions, 3, {wanted.key: wanted.value for wanted in shape.settings}
        )
        for shape in WANTED
    }


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_topics_that_clients_make_are_as_wanted(replicas: int) -> None:
    """Topics that clients or the Spark sink create have the settings that `topics check` wants."""
    layout = Layout(
        partitions=4, replication_factor=replicas, producer_groups=("g",), spark_sink=True
    )
    half = HalfShape(4, MESSAGE_BYTES_MAX, replicas)
    made = {
        NAMES.check("g"): check_topic_settings(half),
        NAMES.manifest: manifest_topic_settings(replicas=replicas),
    }
    wanted = {
        shape.name: {each.key: each.value for each in shape.settings}
        for shape in wanted_topics(NAMES, layout)
        if shape.name in made
    }
    assert made == wanted


def _problems(seen: dict[str, SeenTopic]) -> list[Problem]:
    return find_problems(WANTED, seen, names=NAMES, bootstrap_servers="k:1")


def _changed(topic: str, key: str, value: str) -> dict[str, SeenTopic]:
    seen = _as_wanted()
    seen[topic] = replace(seen[topic], settings={**seen[topic].settings, key: value})
    return seen


def test_op_topic_is_made_before_the_half_topic() -> None:
    """If the half topic exists, the op topic exists too."""
    assert [shape.name for shape in WANTED][:2] == [NAMES.op, NAMES.half]


def test_topics_have_the_designs_settings() -> None:
    """LogAppendTime, no size limit, seven days; copies 128 KiB larger."""
    settings = {
        shape.name: {wanted.key: wanted.value for wanted in shape.settings} for shape in WANTED
    }

    for log in (NAMES.half, NAMES.op):
        assert settings[log]["message.timestamp.type"] == "LogAppendTime"
        assert settings[log]["retention.bytes"] == "-1"
        assert settings[log]["retention.ms"] == str(7 * 24 * 3_600_000)
        assert settings[log]["min.insync.replicas"] == "2"
    for copies in (NAMES.dead, NAMES.check("g")):
        assert settings[copies]["max.message.bytes"] == str(MESSAGE_BYTES_MAX + COPY_BYTES)


def test_manifests_are_kept_for_ever() -> None:
    """The manifest topic is kept for ever: a lost manifest would be published twice."""
    (manifest,) = set(wanted_topics(NAMES, replace(LAYOUT, spark_sink=True))) - set(WANTED)
    settings = {wanted.key: wanted.value for wanted in manifest.settings}
    assert (manifest.name, manifest.partitions) == (NAMES.manifest, 4)
    assert (settings["retention.ms"], settings["retention.bytes"]) == ("-1", "-1")
    assert settings["message.timestamp.type"] == "LogAppendTime"
    (problem,) = find_problems([manifest], {}, names=NAMES, bootstrap_servers="k:1")
    assert problem.fix == (
        "halfbridge topics create --bootstrap-servers k:1 --topic-prefix eu. --spark-sink"
    )


def test_an_installation_without_settings_topic_is_whole() -> None:
    """Without a settings topic, `topics check` gives only advice to create it."""
    seen = _as_wanted()
    del seen[NAMES.settings]
    (problem,) = _problems(seen)
    assert (problem.subject, problem.what) == (NAMES.settings, "the topic is missing")
    assert problem.fix == "halfbridge topics create --bootstrap-servers k:1 --topic-prefix eu."
    assert not problem.blocking


def test_settings_are_kept_compacted_and_small() -> None:
    """The settings topic is compacted, and its records have at most 17 KiB."""
    (shape,) = (shape for shape in WANTED if shape.name == NAMES.settings)
    settings = {wanted.key: wanted.value for wanted in shape.settings}
    assert shape.partitions == 1
    assert settings["cleanup.policy"] == "compact"
    assert settings["max.message.bytes"] == str(17 * 1024)
    assert settings["min.insync.replicas"] == "2"


def test_two_in_sync_replicas_are_only_asked_of_three() -> None:
    """With two replicas, min.insync.replicas is not set: one lost broker would stop the topic."""
    shapes = wanted_topics(NAMES, replace(LAYOUT, replication_factor=2))

    assert all(wanted.key != "min.insync.replicas" for shape in shapes for wanted in shape.settings)


def test_what_is_as_wanted_has_no_problem() -> None:
    """Topics with the wanted settings have no problem."""
    assert _problems(_as_wanted()) == []


@pytest.mark.parametrize(
    ("topic", "key", "value", "blocking"),
    [
        (NAMES.half, "message.timestamp.type", "CreateTime", True),
        (NAMES.half, "cleanup.policy", "compact", True),
        (NAMES.op, "retention.bytes", "1000", True),
        (NAMES.op, "retention.ms", "1000", True),
        (NAMES.op, "min.insync.replicas", "1", True),
        (NAMES.check("g"), "max.message.bytes", "1048588", True),
        (NAMES.dead, "retention.ms", "1000", False),
        (NAMES.settings, "cleanup.policy", "delete", False),
        (NAMES.settings, "max.message.bytes", "1000", False),
    ],
)
def test_deviation_comes_with_its_command(topic: str, key: str, value: str, blocking: bool) -> None:
    """Each deviation is reported with the command that corrects it."""
    problem = _problems(_changed(topic, key, value))[0]

    assert problem.subject == topic
    assert key in problem.what
    assert value in problem.what
    assert problem.blocking is blocking
    assert problem.fix.startswith(f"halfbridge topics alter --bootstrap-servers k:1 {topic} ")
    assert f" --set {key}=" in problem.fix


@pytest.mark.parametrize("value", ["-1", str(30 * 24 * 3_600_000)])
def test_longer_retention_of_both_is_fine(value: str) -> None:
    """Longer retention than wanted is no problem if both topics have it."""
    seen = _as_wanted()
    for topic in (NAMES.half, NAMES.op):
        seen[topic] = replace(seen[topic], settings={**seen[topic].settings, "retention.ms": value})

    assert _problems(seen) == []


@pytest.mark.parametrize("value", ["-1", str(30 * 24 * 3_600_000)])
def test_ops_must_outlive_halves(value: str) -> None:
    """A half topic kept longer than the op topic is a problem of the op topic."""
    (problem,) = _problems(_changed(NAMES.half, "retention.ms", value))

    assert problem.subject == NAMES.op


def test_unequal_partition_counts_come_with_the_growing_command() -> None:
    """The fix grows both topics to the larger count."""
    seen = _as_wanted()
    seen[NAMES.op] = replace(seen[NAMES.op], partitions=6)

    (problem,) = _problems(seen)

    assert "4 half partitions and 6 op partitions" in problem.what
    assert problem.fix.endswith("--topic-prefix eu. --grow --partitions 6")


def test_missing_check_topic_comes_with_its_group() -> None:
    """The fix names the producer group, not only the topic."""
    seen = _as_wanted()
    del seen[NAMES.check("g")]

    (problem,) = _problems(seen)

    assert problem.fix.endswith("--producer-group g")
