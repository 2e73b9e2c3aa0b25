"""`topics create NAME --type`: a real topic with a type, told to clients in the settings topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.shape import TopicShape
from halfbridge.checker.errors import AdminError, InDoubtError
from halfbridge.serde.records import ActionOutcome
from halfbridge.serde.topic_types import TopicType, TopicTypeRecord, encode_type, type_key

if TYPE_CHECKING:
    from halfbridge.checker.admin.appending import Appender
    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.operator_log import OperatorLog
    from halfbridge.serde.topics import TopicNames

_PARTITION = 0


class RealTopic(NamedTuple):
    """A real topic that is wanted; one that exists keeps its partitions and replicas."""

    name: str
    type: TopicType
    partitions: int
    replicas: int


def create_real_topic(
    cluster: Cluster, names: TopicNames, log: OperatorLog, appender: Appender, wanted: RealTopic
) -> bool:
    """Make the topic unless it exists, and tell clients its type; return whether it is new.

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
    before = "there" if cluster.partition_count(wanted.name) else "not there"
    intended = log.record(
        "topics create", wanted.name, why="", before=before, after=wanted.type.value
    )
    try:
        shape = TopicShape(wanted.name, wanted.partitions, ())
        is_new = cluster.create(shape, replication_factor=wanted.replicas)
        record = TopicTypeRecord(wanted.type, intended.at_ms, log.who)
        place = (names.settings, _PARTITION)
        appender.append(place, encode_type(record), type_key(wanted.name))
    except AdminError as error:
        in_doubt = isinstance(error, InDoubtError)
        outcome = ActionOutcome.IN_DOUBT if in_doubt else ActionOutcome.FAILED
        log.conclude(intended, outcome, after=str(error))
        raise
    log.conclude(intended, ActionOutcome.DONE, after=wanted.type.value)
    return is_new
