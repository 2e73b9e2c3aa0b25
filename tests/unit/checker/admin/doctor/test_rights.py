"""Grants that are needed against what brokers say."""

from __future__ import annotations

from halfbridge.checker.admin.acls import daemon_acls, missing_of
from halfbridge.serde.topics import TopicNames

NAMES = TopicNames("p.")


def test_only_what_is_missing_is_granted() -> None:
    """Of a grant with four operations the two that are not there; nothing where nobody says."""
    grants = {acl.name: acl for acl in daemon_acls(NAMES, "User:d", real_topics=("orders",))}
    half, op = grants[NAMES.half], grants[NAMES.op]
    lacks = missing_of(
        {NAMES.half: half, NAMES.op: op, "orders": grants["orders"]},
        {NAMES.half: frozenset(("Read", "Describe")), NAMES.op: None, "orders": frozenset()},
    )
    assert [(acl.name, acl.operations) for acl in lacks] == [
        (NAMES.half, ("Write", "DescribeConfigs")),
        ("orders", ("Write", "Describe", "DescribeConfigs")),
    ]
