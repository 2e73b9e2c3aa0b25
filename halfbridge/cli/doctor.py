"""`halfbridge doctor`: what is wrong with an installation, and the commands that mend it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbridge import __version__
from halfbridge.checker.admin.doctor.codes import Severity
from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.doctor_changes import CHANGES_URL_VARIABLE, ask_changes, changes_of
from halfbridge.cli.options import json_option, load_settings, settings_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.admin.doctor.codes import Finding

EXIT_WARNINGS, EXIT_ERRORS = 1, 2
_TIMEOUT_S_MAX = 600  # ten minutes: a longer wait is a hang to whoever asks


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
    help="SQLAlchemy URL of a PostgreSQL database: look at its replication slots too. Give a URL"
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
    """Find what is wrong with an installation, and show the command that mends it.

    Asks brokers and this machine, and Kafka Connect and a database if they are given; changes
    nothing. Give the daemon's settings (--config, variables or flags) and its principal. Exit
    status: 0, 1 with warnings, 2 with errors.
    """
    # Imported here: --help does not need the Kafka client.
    from halfbridge.checker.admin.doctor.bundle import finding_body, write_bundle
    from halfbridge.checker.admin.doctor.gather import Request, gather
    from halfbridge.checker.admin.doctor.host import host_facts
    from halfbridge.checker.admin.doctor.judge import judge
    from halfbridge.checker.admin.doctor.questions import Questions
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
        click.echo(f"{each.severity.value:<8} {each.code}: {each.what}\n         mend: {each.mend}")
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
