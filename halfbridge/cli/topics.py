"""`halfbridge topics`: create, check, describe and alter topics."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.admin.acls import Acl, daemon_acls, operator_acls, producer_acls, sink_acls
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.policy import load_policy
from halfbridge.cli.options import (
    CONNECTION,
    actor_option,
    connected,
    json_option,
    load_settings,
    settings_options,
    who,
)
from halfbridge.cli.table import table
from halfbridge.serde.settings_topic import TopicType
from halfbridge.serde.topics import PAIRS, SAFE_REPLICAS, holds_internal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.admin.topics import Report
    from halfbridge.serde.topics import TopicNames

_SETTINGS = (*CONNECTION, "transaction_age_ms_max")


def _checked_groups(
    _context: click.Context, _option: click.Parameter, groups: tuple[str, ...]
) -> tuple[str, ...]:
    for group in groups:
        if holds_internal_name(group):
            raise click.BadParameter(f"{group}: a producer group's name must not hold RMQ_SYS_")
    return groups


_group_option = click.option(
    "--producer-group",
    "-g",
    "producer_groups",
    multiple=True,
    callback=_checked_groups,
    metavar="NAME",
    help="A producer group that needs a check topic. May be repeated.",
)
_partitions_option = click.option(
    "--partitions",
    type=click.IntRange(1, 1000),
    default=None,
    help=f"Partitions of half and op topic, and so the most workers. [default: {PAIRS}]"
    " With --type, partitions of the real topic. [default: 1]",
)
_replication_option = click.option(
    "--replication-factor",
    type=click.IntRange(1, 15),
    default=None,
    help="Replicas of every topic. [default: 3, or as many as there are brokers]",
)
_real_option = click.option(
    "--real-topic",
    "real_topics",
    multiple=True,
    metavar="NAME",
    help="A topic that transactions deliver to. Its size limit is compared with the half topic's."
    " May be repeated. Topics in the --policy-file need not be given.",
)
_sink_option = click.option(
    "--spark-sink",
    is_flag=True,
    help="Include the manifest topic, which the Spark sink needs. With --acls, the given groups"
    " are groups of the sink.",
)


@click.group()
def topics() -> None:
    """Create, check, describe or alter topics."""


@topics.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--type",
    "topic_type",
    type=click.Choice(["transaction", "plain"]),
    default=None,
    help="Type of the real topic NAME: written by the daemon only, or never by the daemon.",
)
@actor_option
@_group_option
@_partitions_option
@_replication_option
@_sink_option
@click.option(
    "--grow",
    is_flag=True,
    help="Add partitions to an existing installation, or to the real topic NAME.",
)
@click.option("--acls", is_flag=True, help="Print the kafka-acls commands of the installation.")
@click.option(
    "--daemon-principal", default="User:halfbridge", show_default=True, help="For --acls."
)
@click.option(
    "--real-topic", "real_topics", multiple=True, metavar="NAME", help="For --acls; repeatable."
)
@click.option(
    "--operator-principal",
    default="User:halfbridge-operator",
    show_default=True,
    help="For --acls: who runs `halfbridge tx` and the other commands of an operator.",
)
@json_option
@settings_options(CheckerConfig, only=(*_SETTINGS, "policy_file"))
def create(**values: Any) -> int:
    """Create the missing topics and the daemon's first offsets; report what differs.

    Existing topics are altered only with --grow. The command may be repeated. With NAME and --type
    it creates this real topic instead, and publishes its type to clients.
    """
    if (values["name"] is None) != (values["topic_type"] is None):
        raise click.UsageError("NAME and --type need each other", click.get_current_context())
    if values["grow"] and values["partitions"] is None:
        raise click.UsageError("--grow needs --partitions N", click.get_current_context())
    if values["name"] is not None:
        return create_typed(values)
    report = _run(values, make=True)
    status = _show(report, as_json=values["as_json"])
    if values["acls"]:
        _print_acls(values)
    return status


@topics.command()
@_group_option
@_partitions_option
@_replication_option
@_sink_option
@_real_option
@json_option
@settings_options(CheckerConfig, only=(*_SETTINGS, "policy_file"))
def check(**values: Any) -> int:
    """Report every problem of topics and offsets, each with the command that fixes it."""
    return _show(_run(values, make=False), as_json=values["as_json"])


@topics.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@json_option
@settings_options(CheckerConfig, only=CONNECTION)
def describe(**values: Any) -> int:
    """Show the leader and the replicas of each partition, and why one takes no records.

    Without NAME, of the internal topics. Exit status: 1 if a topic is missing, or a partition takes
    no records.
    """
    from halfbridge.checker.admin.real_topics import create_command, placed

    cluster, config = connected(values)
    wanted = values["names"] or _internal(config.names, cluster.topics())
    found = placed(cluster, wanted)
    missing = [name for name in wanted if name not in found]
    partitions = [each for topic in found.values() for each in topic]
    if values["as_json"]:
        bodies = [{**dataclasses.asdict(each), "cause": each.cause} for each in partitions]
        click.echo(json.dumps({"partitions": bodies, "missing": missing}))
    else:
        rows = [
            (
                *(each.topic, each.partition, "none" if each.leader is None else each.leader),
                *(",".join(map(str, ids)) or "none" for ids in (each.replicas, each.in_sync)),
                each.cause or "takes records",
            )
            for each in partitions
        ]
        headings = ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC", "STATE")
        for line in table(headings, rows) if rows else ():
            click.echo(line)
        for name in missing:
            click.echo(f"topic {name} does not exist; create it: {create_command(name)}")
    return 1 if missing or any(each.why for each in partitions) else 0


@topics.command()
@click.argument("name")
@click.option(
    "--set",
    "settings",
    multiple=True,
    required=True,
    metavar="KEY=VALUE",
    help="A setting, by Kafka's name. May be repeated.",
)
@settings_options(CheckerConfig, only=CONNECTION)
def alter(**values: Any) -> int:
    """Change settings of the topic NAME: all that are given, or none.

    `halfbridge topics check` names the settings that are wrong.
    """
    wanted = {}
    for text in values["settings"]:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.UsageError(f"--set {text}: not KEY=VALUE", click.get_current_context())
        wanted[key] = value
    cluster, _ = connected(values)
    cluster.alter(values["name"], wanted)
    for key, value in wanted.items():
        click.echo(f"altered   {values['name']}: {key} is {value}")
    return 0


def _internal(names: TopicNames, known: Sequence[str]) -> list[str]:
    """Return the internal topics that an installation has, or must have."""
    needed = [names.half, names.op, names.dead, names.settings, names.audit]
    checks = [names.check(group) for group in names.groups_of(known)]
    return [*needed, *checks, *({names.manifest} & set(known))]


def _run(values: dict[str, Any], *, make: bool) -> Report:
    from halfbridge.checker.admin.real_topics import RETENTION_AGES
    from halfbridge.checker.admin.shape import HALF_RETENTION_MS
    from halfbridge.checker.admin.topics import check_topics, create_topics, plan_layout
    from halfbridge.checker.policy import load_policy, may_deliver

    cluster, config = connected(values)
    layout = plan_layout(
        cluster,
        partitions=values["partitions"],
        replication_factor=values["replication_factor"],
        producer_groups=values["producer_groups"],
        retention_ms=max(HALF_RETENTION_MS, RETENTION_AGES * config.transaction_age_ms_max),
        spark_sink=values["spark_sink"],
    )
    if make:
        return create_topics(cluster, config.names, layout, grow=values["grow"])
    policy = load_policy(config.policy_file, names=config.names)

    def is_real(topic: str) -> bool:
        return topic in values["real_topics"] or may_deliver(policy, topic)

    return check_topics(cluster, config.names, layout, is_real=is_real)


def _show(report: Report, *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"ok": report.ok, **dataclasses.asdict(report)}))
        return 0 if report.ok else 1
    for topic in report.created:
        click.echo(f"created   {topic}")
    for topic in report.grown:
        click.echo(f"grown     {topic}")
    if report.initialised:
        numbers = ", ".join(map(str, report.initialised))
        click.echo(f"offsets   first ones committed for partition {numbers}")
    for problem in report.problems:
        word = "problem  " if problem.blocking else "advice   "
        click.echo(f"{word} {problem.subject}: {problem.what}\n          fix: {problem.fix}")
    if report.retention_left_s is not None:
        days = report.retention_left_s / 86_400
        click.echo(f"retention the oldest needed record is kept for another {days:.1f} days")
    click.echo("all well" if report.ok else "not well: see the problems above")
    return 0 if report.ok else 1


def _print_acls(values: dict[str, Any]) -> None:
    config = load_settings(CheckerConfig, values)
    real_topics = values["real_topics"]
    acls = list(daemon_acls(config.names, values["daemon_principal"], real_topics=real_topics))
    acls += operator_acls(config.names, values["operator_principal"])
    group_acls = sink_acls if values["spark_sink"] else producer_acls
    for group in values["producer_groups"]:
        acls += group_acls(config.names, group, f"User:{group}", real_topics=real_topics)
    if not real_topics:
        click.echo("# real topics: give --real-topic NAME for the grants on them")
    for acl in acls:
        click.echo(acl.command(config.bootstrap_servers))


_PARTITIONS = 1  # of the settings topic


def create_typed(values: dict[str, Any]) -> int:
    """Create the topic, write its type to the settings topic; return the exit status.

    1: the policy file, which the daemon goes by, says something else.
    """
    from halfbridge.checker.admin.appending import appending
    from halfbridge.checker.admin.operator_log import OperatorLog
    from halfbridge.checker.admin.topics import RealTopic, create_real_topic

    cluster, config = connected(values)
    kind = TopicType(values["topic_type"].upper())
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
    is_in_policy = policy.type_of(wanted.name) is kind
    if values["as_json"]:
        was = None if before is None else before.value
        body = {"name": wanted.name, "type": kind.value, "was": was, "created": is_new}
        body["grown"] = grows
        click.echo(json.dumps({**body, "in_policy": is_in_policy, "policy_line": line}))
    else:
        is_other = before not in (None, kind)
        word = "changed" if is_other else "created" if is_new else "exists"
        was = f", was {before.value.lower()}" if before is not None and is_other else ""
        click.echo(f"{word:<9} {wanted.name}, {values['topic_type']}{was}")
        if grows:
            click.echo(f"grown     {wanted.name}, from {there} to {wanted.partitions} partitions")
        if not is_in_policy:
            where = config.policy_file or "the policy file of all workers"
            click.echo(f"policy    add below [topics] in {where}: {line}")
    if values["acls"]:
        for acl in typed_acls(wanted.name, kind, values["daemon_principal"]):
            click.echo(acl.command(config.bootstrap_servers))
    return 0 if is_in_policy or config.policy_file is None else 1


def typed_acls(topic: str, kind: TopicType, daemon: str) -> tuple[Acl, ...]:
    """Return the grants of a transaction topic, which the daemon alone writes to; others need none.

    A plain topic's writers are its owner's business.
    """
    if kind is TopicType.PLAIN:
        return ()
    return (Acl(daemon, ("Write", "Describe", "DescribeConfigs"), "--topic", topic),)
