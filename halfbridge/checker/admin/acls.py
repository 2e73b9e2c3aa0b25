"""The ACLs of an installation, as kafka-acls commands, and the missing ones of a principal.

The transaction id is the capability to decide (DESIGN.md, Trust). So READ on half and op topics is
for the daemon and auditors, and READ on a check topic for its producer group. Everybody may read
the settings topic: it contains no id, its records are hints, and only the daemon and operators may
write them.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from halfbridge.checker.admin.cluster import CALL_TIMEOUT_S
from halfbridge.kafka.errors import NO_RIGHT, NO_SUCH_TOPIC, KafkaFailure
from halfbridge.serde.topics import ADMIN_GROUP

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from halfbridge.kafka.ports import Admin, Answer
    from halfbridge.serde.topics import TopicNames


@dataclass(frozen=True, slots=True)
class Acl:
    """One grant."""

    principal: str  # as Kafka writes it, `User:name`
    operations: tuple[str, ...]  # Kafka's names
    resource: str  # `--topic`, `--group`, `--transactional-id` or `--cluster`
    name: str = ""  # the resource's name; empty for the cluster
    prefixed: bool = False  # `name` is a prefix

    def command(self, bootstrap_servers: str) -> str:
        """Return the command that makes this grant."""
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap_servers, "--add"]
        words += ["--allow-principal", self.principal]
        for operation in self.operations:
            words += ["--operation", operation]
        words.append(self.resource)
        if self.name:
            words.append(self.name)
        if self.prefixed:
            words += ["--resource-pattern-type", "prefixed"]
        return shlex.join(words)


def daemon_acls(
    names: TopicNames, principal: str, *, real_topics: tuple[str, ...]
) -> tuple[Acl, ...]:
    """Return the daemon's ACLs."""
    written = ("Write", "Describe", "DescribeConfigs")  # the last for limits of sizes
    return (
        *(
            Acl(principal, ("Read", "Write", "Describe", "DescribeConfigs"), "--topic", topic)
            for topic in (names.half, names.op)
        ),
        Acl(principal, written, "--topic", names.check(""), prefixed=True),
        Acl(principal, written, "--topic", names.dead),
        Acl(principal, ("Read", "Write", "Describe"), "--topic", names.settings),
        *(Acl(principal, written, "--topic", topic) for topic in real_topics),
        Acl(principal, ("Read", "Describe"), "--group", names.daemon_group),
        Acl(principal, ("Read", "Describe"), "--group", names.reading_group),
        Acl(
            principal,
            ("Write", "Describe"),
            "--transactional-id",
            f"{names.prefix}halfbridge-",
            prefixed=True,
        ),
        Acl(principal, ("IdempotentWrite",), "--cluster"),
    )


def producer_acls(
    names: TopicNames, producer_group: str, principal: str, *, real_topics: tuple[str, ...]
) -> tuple[Acl, ...]:
    """Return the ACLs of a producer group's clients, who write halves and ops, but read none."""
    return (
        Acl(principal, ("Write", "Describe", "DescribeConfigs"), "--topic", names.half),
        Acl(principal, ("Write", "Describe"), "--topic", names.op),
        Acl(principal, ("Read", "Describe"), "--topic", names.check(producer_group)),
        Acl(principal, ("Read",), "--group", names.check_group(producer_group)),
        Acl(principal, ("Read", "Describe"), "--topic", names.settings),
        *(Acl(principal, ("Describe",), "--topic", topic) for topic in real_topics),
        Acl(principal, ("IdempotentWrite",), "--cluster"),
    )


def operator_acls(names: TopicNames, principal: str) -> tuple[Acl, ...]:
    """Return the ACLs of an operator who reads transactions, decides them, and redelivers.

    READ on half and op topic shows ids, so a principal with these grants may decide any
    transaction. Dead letters are stored again as half messages, marked, and deleted once they are
    dealt with.
    """
    read = ("Read", "Describe", "DescribeConfigs")
    return (
        Acl(principal, (*read, "Write"), "--topic", names.half),
        Acl(principal, (*read, "Write"), "--topic", names.op),
        Acl(principal, (*read, "Write", "Delete"), "--topic", names.dead),
        Acl(principal, (*read, "Write"), "--topic", names.settings),
        Acl(principal, (*read, "Write"), "--topic", names.audit),
        Acl(principal, ("Describe",), "--group", names.daemon_group),
        Acl(principal, ("Read",), "--group", ADMIN_GROUP),
        Acl(principal, ("Write", "Describe"), "--transactional-id", names.dead_letters_id),
        Acl(principal, ("IdempotentWrite",), "--cluster"),
    )


def sink_acls(
    names: TopicNames, producer_group: str, principal: str, *, real_topics: tuple[str, ...]
) -> tuple[Acl, ...]:
    """Return the ACLs of the Spark sink and its responder: a client's, and the manifests'.

    It has no transactional id of its own: the manifest is its commit point. It reads the settings
    of real topics, for it refuses the rows that these would refuse; the dead letters, to count
    those of its rows that were refused; and how far the daemon has come, to wait for it.
    """
    return (
        *producer_acls(names, producer_group, principal, real_topics=real_topics),
        *(Acl(principal, ("DescribeConfigs",), "--topic", topic) for topic in real_topics),
        Acl(principal, ("Read", "Write", "Describe", "DescribeConfigs"), "--topic", names.manifest),
        Acl(principal, ("Read",), "--group", names.manifest_group),
        Acl(principal, ("Read", "Describe"), "--topic", names.dead),
        Acl(principal, ("Describe",), "--group", names.daemon_group),
    )


def lacking(
    admin: Admin, wanted: Iterable[Acl], *, topics: Collection[str], prefixed: Collection[str] = ()
) -> tuple[Acl, ...]:
    """Return the grants of `wanted` of which the principal of `admin` lacks some, with those alone.

    Grants on topics that are not in `topics` are left out, as those on other resources. `prefixed`
    are the names that represent a grant on a prefix.
    """
    grants = {
        name: replace(acl, name=name, prefixed=False)
        for acl in wanted
        if acl.resource == "--topic"
        for name in (prefixed if acl.prefixed else [acl.name])
        if name in topics
    }
    if not grants:
        return ()
    answers = admin.ask_operations(grants, CALL_TIMEOUT_S)
    allowed = {name: _allowed(answer) for name, answer in answers.items()}
    return missing_of(grants, allowed)


def missing_of(
    grants: Mapping[str, Acl], allowed: Mapping[str, frozenset[str] | None]
) -> tuple[Acl, ...]:
    """Return those of `grants` that are not there in full; None: the broker does not say. Pure."""
    lacks = []
    for name, acl in grants.items():
        granted = allowed.get(name)
        missing = (
            () if granted is None else tuple(each for each in acl.operations if each not in granted)
        )
        if missing:
            lacks.append(replace(acl, operations=missing))
    return tuple(lacks)


def _allowed(answer: Answer[frozenset[str] | None]) -> frozenset[str] | None:
    try:
        return answer.result()
    except KafkaFailure as failure:
        if failure.code in NO_RIGHT | NO_SUCH_TOPIC:
            return frozenset()  # not even to be seen
        raise
