"""`halfbridge doctor`: show faults of an installation, and the command that removes each."""

from __future__ import annotations

import json
import shlex
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbridge import __version__
from halfbridge.checker.admin.doctor.facts import Changes, Connector, Drift, Severity, Slot
from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.options import json_option, load_settings, opened, settings_options
from halfbridge.kafka.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import URL

    from halfbridge.checker.admin.doctor.facts import Finding
    from halfbridge.checker.admin.doctor.gather import Questions
    from halfbridge.connect.rest import ConnectRest

EXIT_WARNINGS, EXIT_ERRORS = 1, 2  # as Nagios and its successors read them
_TIMEOUT_S_MAX = 600  # ten minutes: a longer wait would pass for a hang
CHANGES_URL_VARIABLE = "HALFBRIDGE_CHANGES_URL"


@click.command()
@click.option(
    "--producer-group",
    "-g",
    "producer_groups",
    multiple=True,
    metavar="NAME",
    help="A producer group that needs a check topic; others are found by theirs. May be repeated.",
)
@click.option(
    "--real-topic",
    "real_topics",
    multiple=True,
    metavar="NAME",
    help="A topic that transactions deliver to. Topics that the --policy-file lists need not be"
    " given. May be repeated.",
)
@click.option(
    "--client-kafka",
    "client_kafka",
    multiple=True,
    metavar="NAME=VALUE",
    help="Kafka property of a client's principal, whose rights are tried too. May be repeated.",
)
@click.option(
    "--daemon-principal", default="User:halfbridge", show_default=True, help="For grants."
)
@click.option("--client-principal", default="User:client", show_default=True, help="For grants.")
@click.option(
    "--connect-url",
    metavar="URL",
    help="Kafka Connect, such as http://127.0.0.1:8083: look at its connectors too.",
)
@click.option(
    "--changes-url",
    envvar=CHANGES_URL_VARIABLE,
    metavar="URL",
    help="SQLAlchemy URL of the database of the connectors: look at PostgreSQL's replication slots"
    " and, with --connect-url, at tables that changed after their connector was made. Give a URL"
    f" with a password in the environment variable. [{CHANGES_URL_VARIABLE}]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, _TIMEOUT_S_MAX),
    default=30.0,
    show_default=True,
    help="Seconds for all questions together.",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a ZIP file for a report: no payloads, no passwords, no values of Kafka properties.",
)
@json_option
@settings_options(CheckerConfig)
def doctor(**values: Any) -> int:
    """Find faults of an installation, and show the command that removes each.

    Asks brokers and this machine, and Kafka Connect and a database if they are given; changes
    nothing. Give the daemon's settings (--config, variables or flags) and its principal. Exit
    status: 0, 1 with warnings, 2 with errors.
    """
    # Imported here: --help does not need the Kafka client.
    from halfbridge.checker.admin.doctor.facts import finding_body, host_facts, write_bundle
    from halfbridge.checker.admin.doctor.gather import Questions, Request, gather
    from halfbridge.checker.admin.doctor.judge import judge
    from halfbridge.checker.policy import load_policy, named_topics
    from halfbridge.kafka.adapter import system_ports

    config = load_settings(CheckerConfig, values)
    policy = load_policy(config.policy_file, names=config.names)
    request = Request(
        producer_groups=values["producer_groups"],
        real_topics=values["real_topics"],
        client_kafka=_properties(values["client_kafka"]),
        principals=(values["daemon_principal"], values["client_principal"]),
        policy_topics=named_topics(config.policy_file),
        timeout_s=values["timeout_s"],
    )
    ports = system_ports()
    beside = Questions(ports, request.timeout_s)  # of others than brokers
    connect_url, changes_url = values["connect_url"] or "", values["changes_url"] or ""
    database = ask_changes(beside, connect_url, changes_url, timeout_s=request.timeout_s)
    facts = gather(config, policy, request, host=host_facts(), ports=ports)
    beside.wait()
    facts.changes = changes_of(beside, connect_url, database)
    facts.silent.update(beside.silent)
    found = judge(facts, config)
    if values["bundle"] is not None:
        try:
            write_bundle(values["bundle"], facts, found, config, version=__version__)
        except OSError as error:
            why = f"{values['bundle']} cannot be written: {error.strerror}"
            raise click.BadParameter(why, param_hint="--bundle") from error
        click.echo(f"written: {values['bundle']}", err=True)
    if values["as_json"]:
        click.echo(json.dumps(finding_body(found)))
    else:
        _show(found)
    return _status(found)


def _show(found: Sequence[Finding]) -> None:
    for each in found:
        click.echo(f"{each.severity.value:<8} {each.code}: {each.what}\n         fix: {each.fix}")
    counts = [
        f"{count} {severity.value}{'s' if count > 1 else ''}"
        for severity in Severity
        if (count := sum(each.severity is severity for each in found))
    ]
    click.echo(", ".join(counts) if counts else "all well")


def _status(found: Sequence[Finding]) -> int:
    severities = {each.severity for each in found}
    if Severity.ERROR in severities:
        return EXIT_ERRORS
    return EXIT_WARNINGS if Severity.WARNING in severities else 0


def _properties(pairs: Sequence[str]) -> dict[str, str] | None:
    if not pairs:
        return None
    properties = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter("wanted NAME=VALUE", param_hint="--client-kafka")
        properties[name] = value
    return properties


# Stopped connectors, and slots with most log, of which more would only repeat the finding.
CONNECTORS_MAX, SLOTS_MAX = 100, 100
_CONNECTORS, _SLOTS, _DRIFTS = "Kafka Connect", "replication slots", "tables of connectors"
_DRIFTS_MAX = 100  # more would only repeat the finding
_BACKENDS = ("postgresql", "mariadb", "mysql")
# A slot of another database on the server belongs to somebody else. A standby has no current
# position, but slots of its own from PostgreSQL 16 on.
_SLOTS_SQL = f"""
SELECT slot_name, active, wal_status = 'lost' AS is_lost,
  pg_wal_lsn_diff(
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END,
    restart_lsn
  ) AS kept_bytes
FROM pg_replication_slots
WHERE slot_type = 'logical' AND NOT temporary AND database = current_database()
ORDER BY kept_bytes DESC NULLS FIRST, slot_name
LIMIT {SLOTS_MAX}
"""  # noqa: S608  (a constant)


def ask_changes(
    questions: Questions, connect_url: str, changes_url: str, *, timeout_s: float
) -> str:
    """Begin to ask the given ones of Connect and the database; return its address for psql."""
    from halfbridge.connect.rest import ConnectRest, KafkaConnectError

    rest = None
    if connect_url:
        try:
            rest = ConnectRest(connect_url, call_s=timeout_s)
        except KafkaConnectError as error:
            raise click.BadParameter(str(error), param_hint="--connect-url") from error
        questions.start(_CONNECTORS, partial(_stopped, rest))
    if not changes_url:
        return ""
    with opened(changes_url, option="--changes-url") as engine:  # not connected
        url = engine.url
    backend = url.get_backend_name()
    if backend not in _BACKENDS:
        why = f"give the URL of a database that Debezium reads: {', '.join(_BACKENDS)}"
        raise click.BadParameter(why, param_hint="--changes-url")
    if rest is not None:
        questions.start(_DRIFTS, partial(_drifts, rest, changes_url))
    if backend != "postgresql":
        return _for_mariadb(url)
    questions.start(_SLOTS, partial(_slots, changes_url))
    return _for_psql(url)


def changes_of(questions: Questions, connect_url: str, database: str) -> Changes:
    """Return the answers; a silent Kafka Connect is a fact of its own."""
    return Changes(
        connect_url=connect_url.rstrip("/"),
        connect_silent=questions.silent.pop(_CONNECTORS, ""),
        connectors=questions.answer(_CONNECTORS, ()),
        database=database,
        slots=questions.answer(_SLOTS, ()),
        drifts=questions.answer(_DRIFTS, ()),
    )


def _stopped(rest: ConnectRest) -> tuple[Connector, ...]:
    from halfbridge.connect.rest import KafkaConnectError

    try:
        states = rest.states()
    except KafkaConnectError as error:
        raise BridgeError(str(error)) from error
    stopped = (each for each in states if not each.is_running)
    return tuple(Connector(each.name, each.state, each.tasks, each.trace) for each in stopped)[
        :CONNECTORS_MAX
    ]


def _slots(url: str) -> tuple[Slot, ...]:
    from sqlalchemy import text

    try:
        with opened(url, option="--changes-url") as engine, engine.connect() as connection:
            rows = connection.execute(text(_SLOTS_SQL)).all()
    except click.ClickException as error:
        raise BridgeError(error.message) from error
    return tuple(
        Slot(
            each.slot_name,
            each.active,
            -1 if each.kept_bytes is None else int(each.kept_bytes),
            bool(each.is_lost),
        )
        for each in rows
    )


def _drifts(rest: ConnectRest, url: str) -> tuple[Drift, ...]:
    from halfbridge.connect.drift import find_drifts
    from halfbridge.connect.rest import KafkaConnectError

    try:
        configs = rest.configs()
        with opened(url, option="--changes-url") as engine, engine.connect() as connection:
            return tuple(islice(find_drifts(connection, configs), _DRIFTS_MAX))
    except KafkaConnectError:  # the question about its connectors reports it
        return ()
    except click.ClickException as error:
        raise BridgeError(error.message) from error


def _for_mariadb(url: URL) -> str:
    parts = {"host": url.host, "port": url.port, "user": url.username}
    return shlex.join(f"--{name}={value}" for name, value in parts.items() if value)


def _for_psql(url: URL) -> str:
    parts = {
        "host": url.host or url.query.get("host"),
        "port": url.port,
        "dbname": url.database,
        "user": url.username,
    }
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in parts.items() if value)


def _quoted(value: str) -> str:
    if value and not set(value) & set(" '\\"):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
