"""`topics create NAME --type`: a real topic with a type, told to clients in the settings topic."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.shape import TopicShape
from halfbridge.checker.errors import AdminError
from halfbridge.serde.errors import SerdeError
from halfbridge.serde.records import ActionOutcome
from halfbridge.serde.topic_types import (
    TopicType,
    TopicTypeRecord,
    decode_type,
    encode_type,
    topic_of,
    type_key,
)

if TYPE_CHECKING:
    from halfbridge.checker.admin.appending import Appender
    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.operator_log import OperatorLog
    from halfbridge.serde.topics import TopicNames

_PARTITION = 0  # the only one of the settings topic


class RealTopic(NamedTuple):
    """A real topic that is wanted; one that exists keeps its partitions and replicas."""

    name: str
    type: TopicType
    partitions: int
    replicas: int


class Typed(NamedTuple):
    """What became of a real topic.

    Attributes:
        is_new: It was made; False: it was there.
        before: Its type until now; None: it had none.
    """

    is_new: bool
    before: TopicType | None


def create_real_topic(
    cluster: Cluster, names: TopicNames, log: OperatorLog, appender: Appender, wanted: RealTopic
) -> Typed:
    """Make the topic unless it exists, and tell clients its type.

    Repeating it is harmless: the last record of a topic holds.

    Raises:
        AdminError: an internal name, no settings topic, or the brokers refuse; the text says what
            to do.
    """
    if names.is_internal(wanted.name):
        raise AdminError(f"{wanted.name} is an internal name, which no real topic may have")
    if not cluster.partition_count(names.settings):
        raise AdminError(
            f"topic {names.settings} is missing, by which clients learn of types; run halfbridge"
            " topics create without NAME first"
        )
    type_before = types_of(cluster, names).get(wanted.name)
    there = "there" if cluster.partition_count(wanted.name) else "not there"
    before = f"{there}, {'no type' if type_before is None else type_before.value}"
    intended = log.record(
        "topics create", wanted.name, why="", before=before, after=wanted.type.value
    )
    with log.telling_failure(intended):
        shape = TopicShape(wanted.name, wanted.partitions, ())
        is_new = cluster.create(shape, replication_factor=wanted.replicas)
        record = TopicTypeRecord(wanted.type, intended.at_ms, log.who)
        place = (names.settings, _PARTITION)
        appender.append(place, encode_type(record), type_key(wanted.name))
    log.conclude(intended, ActionOutcome.DONE, after=wanted.type.value)
    return Typed(is_new, type_before)


def types_of(cluster: Cluster, names: TopicNames) -> dict[str, TopicType]:
    """Return the types that clients go by; a record that cannot be read says no type.

    Raises:
        AdminError: brokers do not answer, or there is no settings topic; the operator acts.
    """
    found: dict[str, TopicType] = {}
    start, end = cluster.watermarks(names.settings, _PARTITION)
    for record in cluster.read(names.settings, _PARTITION, start=start, end=end):
        topic = topic_of(record.key)
        if topic is None:
            continue
        found.pop(topic, None)
        if record.value is not None:
            with suppress(SerdeError):
                found[topic] = decode_type(record.value).type
    return found
