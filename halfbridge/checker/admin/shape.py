"""The wanted shapes of the internal topics, and how existing topics deviate. Pure.

Nothing is altered on a cluster here: each difference comes with the command that removes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from halfbridge.serde.settings_topic import SETTINGS_BYTES_MAX
from halfbridge.serde.topics import (
    AUDIT_PARTITIONS,
    CHECK_PARTITIONS,
    CHECK_RETENTION_MS,
    MANIFEST_PARTITIONS,
    MESSAGE_BYTES_MAX,
    SAFE_REPLICAS,
    UNLIMITED,
    audit_settings,
    copy_settings,
    manifest_settings,
    safety,
)
from halfbridge.serde.units import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.serde.topics import TopicNames

# More than twice the age of a discard (72 h); a month to see and redeliver a dead letter.
HALF_RETENTION_MS = 7 * DAY_MS
DEAD_RETENTION_MS = 30 * DAY_MS
DEAD_PARTITIONS = 1  # dead letters are few, and are read in one order
SETTINGS_PARTITIONS = 1  # one: settings have one order
# Pairs are what is divided when a worker dies: a fourth of its load goes to each of four others.
PAIRS_A_WORKER = 4
# Half messages that one worker carries: each takes 55 microseconds of its processor in a slow hour
# (docs/evidence/scale.md), and a worker should be busy 60 % of the time at most.
WORKER_PER_S = 10_000
# Readers believe no longer record; the frame of a batch of one record takes less than 1 KB.
SETTINGS_TOPIC_BYTES = SETTINGS_BYTES_MAX + 1024
_SETTINGS_SETTINGS = {"cleanup.policy": "compact", "max.message.bytes": str(SETTINGS_TOPIC_BYTES)}


def pairs_for(workers: int) -> int:
    """Return how many pairs the workers share: `PAIRS_A_WORKER` each, up to a power of two."""
    return 1 << (workers * PAIRS_A_WORKER - 1).bit_length()


class Rule(Enum):
    """How a setting's value is compared with the wanted one."""

    EQUAL = "equal"
    AT_LEAST = "at least"
    AT_LEAST_OR_UNLIMITED = "at least (or -1)"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One setting of a topic."""

    key: str  # Kafka's name of the setting
    value: str  # what `topics create` sets
    rule: Rule = Rule.EQUAL  # which other values are correct too
    blocking: bool = True  # a deviation loses, duplicates or stops messages; False: it is advice


@dataclass(frozen=True, slots=True)
class TopicShape:
    """How a topic is created, and which properties it must have."""

    name: str
    partitions: int
    settings: tuple[Wanted, ...]
    blocking: bool = True  # whether its absence blocks; False: it is advice


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A topic as it is; `replicas` is the lowest number of replicas of a partition."""

    partitions: int
    replicas: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Problem:
    """One deviation."""

    subject: str  # the topic, or topic and partition
    what: str
    fix: str  # the command that corrects it
    blocking: bool = True  # False for advice
    setting: str = ""  # Kafka's name of the topic's setting that it is about; empty for others
    code: str = "topic-setting"  # code of doctor's finding for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The wanted layout of an installation."""

    partitions: int  # of half and op topic
    replication_factor: int
    producer_groups: tuple[str, ...] = ()  # each gets a check topic
    max_message_bytes: int = MESSAGE_BYTES_MAX
    # Retention of half and op topic, at least twice the greatest transaction age.
    retention_ms: int = HALF_RETENTION_MS
    spark_sink: bool = False  # whether there is a manifest topic


def wanted_topics(names: TopicNames, layout: Layout) -> tuple[TopicShape, ...]:
    """Return the shapes of all internal topics, the op topic first: a half topic implies it."""
    log = (
        Wanted("cleanup.policy", "delete"),
        Wanted("message.timestamp.type", "LogAppendTime"),
        Wanted("retention.ms", str(layout.retention_ms), Rule.AT_LEAST_OR_UNLIMITED),
        Wanted("retention.bytes", str(UNLIMITED)),
    )
    half = Wanted("max.message.bytes", str(layout.max_message_bytes), Rule.AT_LEAST)
    # Ops are small, whatever half messages are.
    op = Wanted("max.message.bytes", str(MESSAGE_BYTES_MAX), Rule.AT_LEAST)
    check = _copies(copy_settings(layout.max_message_bytes, CHECK_RETENTION_MS))
    dead = _copies(copy_settings(layout.max_message_bytes, DEAD_RETENTION_MS))
    shapes = (
        TopicShape(names.op, layout.partitions, (*log, op)),
        TopicShape(names.half, layout.partitions, (*log, half)),
        TopicShape(names.dead, DEAD_PARTITIONS, dead),
        *(
            TopicShape(names.check(group), CHECK_PARTITIONS, check)
            for group in layout.producer_groups
        ),
        *((_manifest(names),) if layout.spark_sink else ()),
        _advised(names.settings, SETTINGS_PARTITIONS, _SETTINGS_SETTINGS),
        _advised(names.audit, AUDIT_PARTITIONS, audit_settings()),
    )
    insync = _wanted(
        safety(layout.replication_factor), {"min.insync.replicas": (Rule.AT_LEAST, True)}
    )
    return tuple(replace(shape, settings=(*shape.settings, *insync)) for shape in shapes)


def find_problems(
    shapes: Sequence[TopicShape],
    seen: Mapping[str, SeenTopic],
    *,
    names: TopicNames,
    bootstrap_servers: str,
) -> list[Problem]:
    """Return every deviation of `seen` from `shapes`, in the order of `shapes`."""
    problems: list[Problem] = []
    create = f"halfbridge topics create {names.options(bootstrap_servers)}"
    for shape in shapes:
        topic = seen.get(shape.name)
        if topic is None:
            group = shape.name.removeprefix(names.check(""))
            option = f" --producer-group {group}" if group != shape.name else ""
            option = " --spark-sink" if shape.name == names.manifest else option
            what, fix = "the topic is missing", create + option
            problems.append(Problem(shape.name, what, fix, shape.blocking, code="topic-missing"))
            continue
        problems.extend(setting_problems(shape, topic, bootstrap_servers=bootstrap_servers))
    problems.extend(_count_problems(seen, names=names, create=create))
    problems.extend(_retention_problems(seen, names=names, bootstrap_servers=bootstrap_servers))
    return problems


def alter_command(topic: str, key: str, value: str, *, bootstrap_servers: str) -> str:
    """Return the command that sets one setting of a topic."""
    return (
        f"halfbridge topics alter --bootstrap-servers {bootstrap_servers} {topic}"
        f" --set {key}={value}"
    )


def _copies(settings: Mapping[str, str]) -> tuple[Wanted, ...]:
    rules = {
        "retention.ms": (Rule.AT_LEAST_OR_UNLIMITED, False),
        "max.message.bytes": (Rule.AT_LEAST, True),
    }
    return _wanted(settings, rules)


def _wanted(
    settings: Mapping[str, str], rules: Mapping[str, tuple[Rule, bool]]
) -> tuple[Wanted, ...]:
    """Return settings as wanted ones: by rule and whether they block; else equal, and blocking."""
    return tuple(
        Wanted(key, value, *rules.get(key, (Rule.EQUAL, True))) for key, value in settings.items()
    )


def _manifest(names: TopicNames) -> TopicShape:
    """Return the manifest topic, without retention: an expired batch would be published twice."""
    rules = {"max.message.bytes": (Rule.AT_LEAST, False)}
    return TopicShape(names.manifest, MANIFEST_PARTITIONS, _wanted(manifest_settings(), rules))


def _advised(topic: str, partitions: int, settings: Mapping[str, str]) -> TopicShape:
    """Return an optional topic of the daemon: its faults are advice."""
    rules = {
        "retention.ms": (Rule.AT_LEAST_OR_UNLIMITED, False),
        "max.message.bytes": (Rule.AT_LEAST, False),
    }
    wanted = (replace(each, blocking=False) for each in _wanted(settings, rules))
    return TopicShape(topic, partitions, tuple(wanted), blocking=False)


def setting_problems(
    shape: TopicShape, topic: SeenTopic, *, bootstrap_servers: str
) -> list[Problem]:
    """Return the faults of one topic's settings."""
    problems = []
    for wanted in shape.settings:
        actual = topic.settings.get(wanted.key, "")
        if wanted.key == "min.insync.replicas" and topic.replicas < SAFE_REPLICAS:
            continue  # made by hand with fewer replicas: two in sync would stop it
        if not _is_good(actual, wanted):
            bound = "" if wanted.rule is Rule.EQUAL else f" {wanted.rule.value}"
            problems.append(
                Problem(
                    shape.name,
                    f"{wanted.key} is {actual}, wanted{bound} {wanted.value}",
                    alter_command(
                        shape.name, wanted.key, wanted.value, bootstrap_servers=bootstrap_servers
                    ),
                    wanted.blocking,
                    wanted.key,
                )
            )
    return problems


def _is_good(actual: str, wanted: Wanted) -> bool:
    if wanted.rule is Rule.EQUAL:
        return actual == wanted.value
    try:
        number = int(actual)
    except ValueError:
        return False
    if wanted.rule is Rule.AT_LEAST_OR_UNLIMITED and number == UNLIMITED:
        return True
    return number >= int(wanted.value)


def _count_problems(
    seen: Mapping[str, SeenTopic], *, names: TopicNames, create: str
) -> list[Problem]:
    half, op = seen.get(names.half), seen.get(names.op)
    if half is None or op is None or half.partitions == op.partitions:
        return []
    most = max(half.partitions, op.partitions)
    what = f"{half.partitions} half partitions and {op.partitions} op partitions must be equal"
    return [Problem(names.half, what, f"{create} --grow --partitions {most}", code="partitions")]


def _retention_problems(
    seen: Mapping[str, SeenTopic], *, names: TopicNames, bootstrap_servers: str
) -> list[Problem]:
    half, op = seen.get(names.half), seen.get(names.op)
    if half is None or op is None:
        return []
    floor = half.settings.get("retention.ms", "")
    wanted = Wanted("retention.ms", floor, Rule.AT_LEAST_OR_UNLIMITED)
    actual = op.settings.get("retention.ms", "")
    if not floor or not actual:  # not to be read
        return []
    unlimited = floor == str(UNLIMITED) and actual != floor
    if not unlimited and _is_good(actual, wanted):
        return []
    what = f"retention.ms is {actual}, less than the half topic's {floor}"
    fix = alter_command(names.op, "retention.ms", floor, bootstrap_servers=bootstrap_servers)
    return [Problem(names.op, what, fix, setting="retention.ms")]
