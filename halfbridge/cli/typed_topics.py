"""`halfbridge topics create NAME --type`: a real topic with a type."""

from __future__ import annotations

import json
from typing import Any

import click

from halfbridge.checker.admin.acls import Acl
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.policy import load_policy
from halfbridge.cli.operators import who
from halfbridge.cli.options import load_settings
from halfbridge.serde.topic_shapes import SAFE_REPLICAS
from halfbridge.serde.topic_types import TopicType

_PARTITIONS = 1  # of the settings topic


def create_typed(values: dict[str, Any]) -> int:
    """Make the topic and tell clients its type; return the exit status.

    1: the policy file, which the daemon goes by, says something else.
    """
    # Imported here: --help does not need the Kafka client.
    from halfbridge.checker.admin.appending import appending
    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.operator_log import OperatorLog
    from halfbridge.checker.admin.typed_topics import RealTopic, create_real_topic

    config = load_settings(CheckerConfig, values)
    kind = TopicType(values["topic_type"].upper())
    cluster = Cluster(config.bootstrap_servers, kafka=config.kafka)
    wanted = RealTopic(
        values["name"],
        kind,
        values["partitions"] or _PARTITIONS,
        values["replication_factor"] or min(SAFE_REPLICAS, cluster.broker_count()),
    )
    there = cluster.partition_count(wanted.name) if values["grow"] else wanted.partitions
    grows = 0 < there < wanted.partitions
    with appending(cluster) as appender:
        log = OperatorLog(cluster, config.names, appender, who=who(values))
        is_new, before = create_real_topic(cluster, config.names, log, appender, wanted)
    if grows:
        cluster.grow(wanted.name, partitions=wanted.partitions)
    policy = load_policy(config.policy_file, names=config.names)
    line = f'"{wanted.name}" = "{values["topic_type"]}"'
    is_told = policy.type_of(wanted.name) is kind
    if values["as_json"]:
        was = None if before is None else before.value
        body = {"name": wanted.name, "type": kind.value, "was": was, "created": is_new}
        body["grown"] = grows
        click.echo(json.dumps({**body, "in_policy": is_told, "policy_line": line}))
    else:
        is_other = before not in (None, kind)
        word = "changed" if is_other else "created" if is_new else "exists"
        was = f", was {before.value.lower()}" if before is not None and is_other else ""
        click.echo(f"{word:<9} {wanted.name}, {values['topic_type']}{was}")
        if grows:
            click.echo(f"grown     {wanted.name}, from {there} to {wanted.partitions} partitions")
        if not is_told:
            where = config.policy_file or "the policy file of all workers"
            click.echo(f"policy    add below [topics] in {where}: {line}")
    if values["acls"]:
        for acl in typed_acls(wanted.name, kind, values["daemon_principal"]):
            click.echo(acl.command(config.bootstrap_servers))
    return 0 if is_told or config.policy_file is None else 1


def typed_acls(topic: str, kind: TopicType, daemon: str) -> tuple[Acl, ...]:
    """Return the grants of a transaction topic, which the daemon alone writes to; others need none.

    A plain topic's writers are its owner's business.
    """
    if kind is TopicType.PLAIN:
        return ()
    return (Acl(daemon, ("Write", "Describe", "DescribeConfigs"), "--topic", topic),)
