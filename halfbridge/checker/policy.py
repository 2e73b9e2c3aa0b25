"""The policy: which producer group may deliver to which real topic, and how keys are placed. Pure.

The policy prevents mistakes, not attacks, because any client may use any producer group's name. The
daemon applies the policy, since a check in the client would protect nobody.

    default = "deny"                      # for groups that are not listed; "deny" when left out

    [groups]
    "orders-service" = ["orders", "invoices-*"]

    [partitioners]                        # "murmur2" for topics that are not listed
    "legacy-*" = "consistent_random"

    [topics]                              # topics that are not listed have no type
    "orders" = "transaction"
    "clicks-*" = "plain"                  # transactions do not deliver there

`*` matches any sequence of characters. Internal topics are always refused. If several patterns of
partitioners, or of topics, match a topic, the first one in the file applies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, cast

from halfbridge.bridge.config import read_toml
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.partitioner import Partitioner
from halfbridge.serde.settings_topic import TopicType
from halfbridge.serde.topics import TopicNames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_PATTERN = re.compile(r"[A-Za-z0-9._*-]+")
_KEYS = ("default", "groups", "partitioners", "topics")
_DEFAULTS = {"allow": True, "deny": False}
_PARTITIONERS = {each.value: each for each in Partitioner}
_TYPES = {each.value.lower(): each for each in TopicType}


@dataclass(frozen=True, slots=True)
class Policy:
    """The topics to which each group may deliver, and the partitioner of each topic.

    Patterns match a topic's name as a whole.

    Attributes:
        default_allow: Whether a group that is not listed may deliver.
    """

    names: TopicNames = field(default_factory=TopicNames)
    groups: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    default_allow: bool = True
    partitioners: tuple[tuple[re.Pattern[str], Partitioner], ...] = ()
    types: tuple[tuple[re.Pattern[str], TopicType], ...] = ()

    def allows(self, group: str, real_topic: str) -> bool:
        """Tell whether a COMMIT of `group` may be delivered to `real_topic`."""
        if self.names.is_internal(real_topic) or self.type_of(real_topic) is TopicType.PLAIN:
            return False
        pattern = self.groups.get(group)
        if pattern is None:
            return self.default_allow
        return pattern.fullmatch(real_topic) is not None

    def type_of(self, real_topic: str) -> TopicType | None:
        """Return the type of `real_topic`; None: it has none, and takes all messages."""
        for pattern, kind in self.types:
            if pattern.fullmatch(real_topic) is not None:
                return kind
        return None

    def partitioner(self, real_topic: str) -> Partitioner:
        """Return how the keys of `real_topic` are placed."""
        for pattern, partitioner in self.partitioners:
            if pattern.fullmatch(real_topic) is not None:
                return partitioner
        return Partitioner.MURMUR2


def may_deliver(policy: Policy, topic: str) -> bool:
    """Tell whether the policy names `topic` for some group."""
    return any(pattern.fullmatch(topic) for pattern in policy.groups.values())


def named_topics(path: Path | None) -> tuple[str, ...]:
    """Return the topics that the policy file names without a pattern; as `load_policy`."""
    if path is None:
        return ()
    groups = cast("Mapping[str, Sequence[str]]", _read(path).get("groups", {}))
    topics = [topic for listed in groups.values() for topic in listed]
    return tuple(dict.fromkeys(topic for topic in topics if "*" not in topic))


def load_policy(path: Path | None, *, names: TopicNames) -> Policy:
    """Return the policy in a file; None: all but internal topics. ConfigError: correct the file."""
    if path is None:
        return Policy(names)
    raw = _read(path)
    unknown = [key for key in raw if key not in _KEYS]
    if unknown:
        near = get_close_matches(unknown[0], _KEYS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise _wrong(path, f"key {unknown[0]!r}", f"{', '.join(_KEYS)}{hint}")
    if raw and raw.keys().isdisjoint(("default", "groups")):
        # Otherwise a file with partitioners or topics only would refuse every delivery.
        alone = f"{' and '.join(raw)} alone"
        raise _wrong(path, alone, 'default = "allow" or "deny" beside them')
    default = raw.get("default", "deny")
    if not isinstance(default, str) or default not in _DEFAULTS:
        raise _wrong(path, f"default = {default!r}", '"allow" or "deny"')
    groups = raw.get("groups", {})
    if not isinstance(groups, dict):
        raise _wrong(path, f"groups = {groups!r}", "a table, [groups], of lists of topics")
    patterns = {str(group): _compile(topics, group, path=path) for group, topics in groups.items()}
    partitioners = raw.get("partitioners", {})
    if not isinstance(partitioners, dict):
        raise _wrong(path, f"partitioners = {partitioners!r}", "a table, [partitioners]")
    placed = tuple(
        (_compile([topic], "partitioners", path=path), _partitioner(name, topic, path=path))
        for topic, name in partitioners.items()
    )
    return Policy(names, patterns, _DEFAULTS[default], placed, _types(raw, path=path))


def _types(
    raw: Mapping[str, object], *, path: Path
) -> tuple[tuple[re.Pattern[str], TopicType], ...]:
    topics = raw.get("topics", {})
    if not isinstance(topics, dict):
        raise _wrong(path, f"topics = {topics!r}", "a table, [topics], of types")
    for topic, name in topics.items():
        if not isinstance(name, str) or name not in _TYPES:
            raise _wrong(path, f"{topic} = {name!r}", " or ".join(map(repr, _TYPES)))
    return tuple(
        (_compile([topic], "topics", path=path), _TYPES[name]) for topic, name in topics.items()
    )


def _read(path: Path) -> Mapping[str, object]:
    try:
        return read_toml(path)
    except ConfigError as error:
        raise _wrong(path, error.origin, error.allowed) from error


def _compile(topics: object, group: object, *, path: Path) -> re.Pattern[str]:
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise _wrong(path, f"{group} = {topics!r}", "a list of topic names or patterns")
    for topic in topics:
        if not _PATTERN.fullmatch(topic):
            allowed = "topic names of letters, digits, '.', '_', '-', and '*' for any run of them"
            raise _wrong(path, f"{group}: {topic!r}", allowed)
    # An empty list allows nothing: `(?!)` never matches.
    return re.compile("|".join(re.escape(topic).replace(r"\*", ".*") for topic in topics) or "(?!)")


def _partitioner(name: object, topic: object, *, path: Path) -> Partitioner:
    if not isinstance(name, str) or name not in _PARTITIONERS:
        raise _wrong(path, f"{topic} = {name!r}", " or ".join(map(repr, _PARTITIONERS)))
    return _PARTITIONERS[name]


def _wrong(path: Path, value: str, allowed: str) -> ConfigError:
    return ConfigError(
        field="policy_file", value=value, origin=f"{path}, by --policy-file", allowed=allowed
    )
