"""What is wrong with the settings of topics while a worker runs. Pure.

Two settings of half and op topic make what is read untrue: a pair stops for them. The others make a
loss possible later on, or deliveries fail: they are told, and stop nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from halfbridge.checker.admin.real_topics import real_topic_problems
from halfbridge.checker.admin.shape import (
    Layout,
    SeenTopic,
    find_problems,
    wanted_topics,
)
from halfbridge.serde.topic_shapes import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.checker.admin.shape import Problem
    from halfbridge.serde.topics import TopicNames

MAX_BYTES = "max.message.bytes"
MIN_IN_SYNC = "min.insync.replicas"
TIMESTAMP_TYPE = "message.timestamp.type"
CLEANUP_POLICY = "cleanup.policy"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
LOOKED_AT = frozenset(
    (MAX_BYTES, MIN_IN_SYNC, TIMESTAMP_TYPE, CLEANUP_POLICY, RETENTION_MS, RETENTION_BYTES)
)
# Half messages must outlive what may still be decided about them (docs/operations.md).
RETENTION_AGES = 2
# Of many problems the texts name so many; `topics check` shows all.
SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Flaws:
    """What was found.

    Attributes:
        stopping: Settings that no pair may be served with.
        alarms: Settings by which something may be lost or fail later on.
        advice: What may be meant as it is.
    """

    stopping: tuple[Problem, ...] = ()
    alarms: tuple[Problem, ...] = ()
    advice: tuple[Problem, ...] = ()


def find_flaws(
    names: TopicNames,
    known: Mapping[str, Mapping[str, str]],
    *,
    transaction_age_ms_max: int,
    bootstrap_servers: str,
) -> Flaws:
    """Return what is wrong with `known`.

    Args:
        names: Of this installation.
        known: Topic -> its settings; a setting that could not be read is empty.
        transaction_age_ms_max: The daemon's setting: what half and op topic must keep.
        bootstrap_servers: For the commands that mend.
    """
    seen = {topic: SeenTopic(1, 1, settings) for topic, settings in known.items()}
    half_bytes = number(known.get(names.half, {}).get(MAX_BYTES, ""))
    layout = Layout(
        partitions=1,
        replication_factor=1,
        producer_groups=tuple(names.groups_of(known)),
        max_message_bytes=max(MESSAGE_BYTES_MAX, half_bytes or 0),
        retention_ms=RETENTION_AGES * transaction_age_ms_max,
    )
    shapes = []
    for shape in wanted_topics(names, layout):
        told = known.get(shape.name)
        if told is not None:
            asked = tuple(wanted for wanted in shape.settings if told.get(wanted.key))
            shapes.append(replace(shape, settings=asked))
    found = find_problems(shapes, seen, names=names, bootstrap_servers=bootstrap_servers)
    real = [topic for topic in seen if not names.is_internal(topic)]
    small = real_topic_problems(seen, real, names=names, bootstrap_servers=bootstrap_servers)
    stopping = [each for each in found if _stops(each, names, known)]
    alarms = [each for each in found if each.blocking and each not in stopping]
    return Flaws(tuple(stopping), tuple(alarms), tuple(small))


def told(problems: tuple[Problem, ...]) -> str:
    """Return problems in words, each with the command that mends it; empty without any."""
    texts = [f"{each.subject}: {each.what}; mend it: {each.fix}" for each in problems[:SHOWN_MAX]]
    if len(problems) > SHOWN_MAX:
        texts.append(f"and {len(problems) - SHOWN_MAX} more: see `halfbridge topics check`")
    return "; ".join(texts)


def number(value: str) -> int | None:
    """Return the number that a setting is; None when it is none."""
    try:
        return int(value)
    except ValueError:
        return None


def _stops(problem: Problem, names: TopicNames, known: Mapping[str, Mapping[str, str]]) -> bool:
    if problem.subject not in (names.half, names.op):
        return False
    if problem.setting == CLEANUP_POLICY:
        return "compact" in known[problem.subject][CLEANUP_POLICY]
    return problem.setting == TIMESTAMP_TYPE
