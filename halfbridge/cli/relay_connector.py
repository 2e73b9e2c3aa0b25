"""`halfbridge relay connector`: the configuration of the Debezium connector for tables."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from halfbridge.cli.database import URL_VARIABLE, opened

if TYPE_CHECKING:
    from halfbridge.connect.connector import ConnectorPlan

_PASSWORD_REFERENCE = "${env:HALFBRIDGE_DATABASE_PASSWORD}"  # noqa: S105  (where it is kept)
_PARTITIONS_MAX = 10_000  # more in one topic is a mistake in the command


@click.command("connector")
@click.option(
    "--database-url",
    "url",
    required=True,
    envvar=URL_VARIABLE,
    metavar="URL",
    help="SQLAlchemy URL of the database, as Kafka Connect reaches it too. Give a URL with a"
    f" password in the environment variable. [{URL_VARIABLE}]",
)
@click.option(
    "--table",
    "tables",
    required=True,
    multiple=True,
    metavar="[SCHEMA.]TABLE",
    help="Table whose changes are read; may be given several times.",
)
@click.option(
    "--name",
    default="changes",
    show_default=True,
    help="Name of the connector; topics are NAME.SCHEMA.TABLE.",
)
@click.option(
    "--bootstrap-servers",
    envvar="HALFBRIDGE_BOOTSTRAP_SERVERS",
    default="",
    help="Kafka, as Kafka Connect reaches it; for MySQL and MariaDB."
    " [HALFBRIDGE_BOOTSTRAP_SERVERS]",
)
@click.option(
    "--snapshot/--no-snapshot",
    default=True,
    show_default=True,
    help="Begin with the rows that are in the tables now.",
)
@click.option(
    "--schemas",
    is_flag=True,
    help="Have each record carry its schema; MySQL's and MariaDB's always do.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, _PARTITIONS_MAX),
    default=1,
    show_default=True,
    help="Partitions of topics that Kafka Connect makes.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(-1),
    default=-1,
    show_default=True,
    help="Replicas of these topics; -1: the broker's default.",
)
@click.option(
    "--password-reference",
    default=_PASSWORD_REFERENCE,
    show_default=True,
    metavar="REFERENCE",
    help="What stands for the password; a configuration provider of Kafka Connect resolves it.",
)
@click.option("--show-secrets", is_flag=True, help="Write the password itself instead.")
@click.option(
    "--apply",
    "connect_url",
    metavar="URL",
    help="Put the configuration to Kafka Connect at this address, and wait until it runs.",
)
def connector(**values: Any) -> int:
    """Print a Debezium connector's configuration for tables, or put it to Kafka Connect.

    The tables are looked up in the database, so that a wrong name is an error here.
    """
    # Imported here: --help needs no SQLAlchemy.
    with opened(values["url"], option="--database-url") as engine:
        from halfbridge.connect.connector import ConnectorPlan, connector_config
        from halfbridge.connect.tables import TableError, find_tables

        secret = str(engine.url.password or "")
        shown = values["show_secrets"] or not secret
        plan = ConnectorPlan(
            name=values["name"],
            tables=(),
            password=secret if shown else values["password_reference"],
            bootstrap_servers=values["bootstrap_servers"],
            snapshot=values["snapshot"],
            schemas=values["schemas"],
            partitions=values["partitions"],
            replication_factor=values["replication_factor"],
        )
        try:
            with engine.connect() as connection:
                found = find_tables(connection, values["tables"])
                is_mariadb = getattr(connection.dialect, "is_mariadb", False)
                dialect = "mariadb" if is_mariadb else connection.dialect.name
            config = connector_config(engine.url, dialect, replace(plan, tables=found))
        except TableError as error:
            raise click.ClickException(str(error)) from error
    if values["connect_url"]:
        _apply(values["connect_url"], plan, config)
    else:
        click.echo(json.dumps(config, indent=2))
    return 0


def _apply(url: str, plan: ConnectorPlan, config: dict[str, str]) -> None:
    from halfbridge.connect.rest import ConnectError, ConnectRest

    try:
        ConnectRest(url).apply(plan.name, config)
    except ConnectError as error:
        raise click.ClickException(str(error)) from error
    topics = ", ".join(f"{plan.name}.{each}" for each in _topics(config))
    click.echo(f"connector {plan.name} runs; topics: {topics}")


def _topics(config: dict[str, str]) -> list[str]:
    return [each.replace("\\", "") for each in config["table.include.list"].split(",")]
