"""Compares the grants that an installation needs with what brokers say that a principal may do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfbridge.checker.admin.cluster import CALL_TIMEOUT_S
from halfbridge.kafka.errors import NO_RIGHT, NO_SUCH_TOPIC, KafkaFailure

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from halfbridge.checker.admin.acls import Acl
    from halfbridge.kafka.ports import Admin, Answer


def lacking(
    admin: Admin, wanted: Iterable[Acl], *, topics: Collection[str], prefixed: Collection[str] = ()
) -> tuple[Acl, ...]:
    """Return the grants on topics of which the principal of `admin` lacks some, with those alone.

    Args:
        admin: A client of the principal.
        wanted: What it needs; grants on other things than topics are left out.
        topics: That exist; of others nothing can be said.
        prefixed: Names that stand for a grant on a prefix.

    Raises:
        KafkaFailure: brokers do not answer.
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
        told = allowed.get(name)
        missing = () if told is None else tuple(each for each in acl.operations if each not in told)
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
