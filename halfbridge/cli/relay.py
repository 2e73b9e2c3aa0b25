"""`halfbridge relay`: send the rows of a local message table, or a database's changes.

`relay run` runs the process of either relay; `relay connector` configures Debezium.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbridge import environment
from halfbridge.bridge.config import BridgeConfig
from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.local_messages import opened_table, table_options
from halfbridge.cli.options import (
    URL_VARIABLE,
    load_settings,
    logging_options,
    metrics_options,
    opened,
    settings_options,
    together,
)
from halfbridge.cli.schema_registry import REGISTRY_VARIABLE, registry_at
from halfbridge.kafka.errors import ConfigError
from halfbridge.logs import LevelSwitch, log_to_stderr
from halfbridge.sql.bounds import CHECK_BOUNDS, RELAY_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from halfbridge.bridge import Answer, MessageView, TransactionProducer
    from halfbridge.bridge.tracing import OpenTelemetryTracing
    from halfbridge.changes.values import Schemas
    from halfbridge.connect.connector import ConnectorPlan
    from halfbridge.relays import RelayRunner
    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.writer import LocalMessages

_BRIDGE_SETTINGS = (
    *("bootstrap_servers", "producer_group", "topic_prefix", "kafka"),
    *("transaction_timeout_ms", "transaction_age_ms_max"),
)


@click.group()
def relay() -> None:
    """Send the messages of a local message table, or a database's changes."""


_PASSWORD_REFERENCE = "${env:HALFBRIDGE_DATABASE_PASSWORD}"  # noqa: S105  (where it is kept)
_PARTITIONS_MAX = 10_000  # more in one topic is a mistake in the command


@relay.command()
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
    help="Reference to the password; a configuration provider of Kafka Connect resolves it.",
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

    The tables must exist in the database, so that a wrong name is an error here.
    """
    # Imported here: --help needs no SQLAlchemy.
    with opened(values["url"], option="--database-url") as engine:
        from halfbridge.connect.connector import ConnectorPlan, connector_config
        from halfbridge.connect.tables import DatabaseTableError, find_tables

        secret = str(engine.url.password or "")
        shown = values["show_secrets"] or not secret
        same = ("name", "bootstrap_servers", "snapshot", "schemas", "partitions")
        plan = ConnectorPlan(
            tables=(),
            password=secret if shown else values["password_reference"],
            replication_factor=values["replication_factor"],
            **{name: values[name] for name in same},
        )
        try:
            with engine.connect() as connection:
                found = find_tables(connection, values["tables"])
                is_mariadb = getattr(connection.dialect, "is_mariadb", False)
                dialect = "mariadb" if is_mariadb else connection.dialect.name
            config = connector_config(engine.url, dialect, replace(plan, tables=found))
        except DatabaseTableError as error:
            raise click.ClickException(str(error)) from error
    if values["connect_url"]:
        _apply(values["connect_url"], plan, config)
    else:
        click.echo(json.dumps(config, indent=2))
    return 0


def _relay_options(command: Any) -> Any:
    from halfbridge.sql.local_messages.config import RelayConfig

    return settings_options(RelayConfig, has_file=False)(command)


# Settings of the daemon that mean the same for a relay of changes.
_SETTINGS = (
    *("kafka_txn_timeout_ms", "batch_records_max", "batch_bytes_max", "session_timeout_ms"),
    *("topic_gone_ms", "slot", "state_dir"),
)
# Without --changes they are unused.
changes_options = together(
    settings_options(CheckerConfig, only=_SETTINGS, has_file=False),
    click.option(
        "--changes",
        metavar="TOPIC",
        help="Relay Debezium's change events of this topic, instead of a local message table.",
    ),
    click.option(
        "--map",
        "map_file",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="With --changes: the TOML file that says how a change becomes a message.",
    ),
    click.option(
        "--changes-group",
        metavar="NAME",
        help="With --changes: the consumer group."
        " [default: <topic prefix>halfbridge-changes-<change topic>]",
    ),
    click.option(
        "--schema-registry",
        envvar=REGISTRY_VARIABLE,
        metavar="URL",
        help="With --changes: the registry of Avro schemas. Give a URL with a password in the"
        f" variable. [{REGISTRY_VARIABLE}]",
    ),
    click.option(
        "--accept-lost",
        is_flag=True,
        help="With --changes: go on where the change topic begins, if the position is lost.",
    ),
)


@relay.command()
@table_options(needs_url=False)
@changes_options
@click.option(
    "--fence-name", default="halfbridge_fence", show_default=True, help="Name of the fence's table."
)
@click.option(
    "--callback",
    metavar="MODULE:FUNCTION",
    help="Function for PREPARED rows: returns True, False, or None for not known yet.",
)
@metrics_options
@logging_options
@settings_options(BridgeConfig, only=_BRIDGE_SETTINGS, has_file=False)
@_relay_options
def run(**values: Any) -> int:
    """Run a relay until SIGTERM or Ctrl-C; then finish the transactions that were begun.

    Several relays may run on one table. Missing tables are created.

    With --changes the relay sends what Debezium has read from a database's log into a topic. It
    needs neither --url nor a producer group.
    """
    if values["changes"] is not None:
        log_to_stderr(values["log_level"], values["log_format"])
        return run_changes(values)
    if values["url"] is None:
        context = click.get_current_context(silent=True)
        raise click.UsageError("Missing option '--url' (or --changes).", context)
    from halfbridge.sql.local_messages.config import RelayConfig

    bridge_config = load_settings(BridgeConfig, values)
    relay_config = load_settings(RelayConfig, values)
    callback = _function(values["callback"])
    log_to_stderr(values["log_level"], values["log_format"])
    with (
        opened(values["url"], bounds=CHECK_BOUNDS) as check_engine,
        opened_table(values, bounds=RELAY_BOUNDS) as messages,
    ):
        _run(
            messages,
            check_engine,
            bridge_config=bridge_config,
            relay_config=relay_config,
            callback=callback,
            values=values,
        )
    return 0


def _run(
    messages: LocalMessages,
    check_engine: Engine,
    *,
    bridge_config: BridgeConfig,
    relay_config: RelayConfig,
    callback: Callable[..., Any] | None,
    values: dict[str, Any],
) -> None:
    # Imported here: --help needs neither SQLAlchemy nor the Kafka client.
    from halfbridge.sql.fence import Fence
    from halfbridge.sql.local_messages.relay import Relay
    from halfbridge.sql.local_messages.service import RelayService

    messages.create()
    fence, checking = (
        Fence(
            engine,
            producer_group=bridge_config.producer_group,
            name=values["fence_name"],
            schema=messages.tables.messages.schema,
        )
        for engine in (messages.engine, check_engine)
    )
    fence.create()
    with ExitStack() as stack:
        producer = started_producer(stack, checking.check, bridge_config)
        made = Relay(messages, fence, producer, relay_config)
        service = RelayService(made, producer, callback=callback)
        says = f"relaying {messages.tables.messages.fullname} as {made.owner}"
        run_until_signal(stack, service, values, says=says)


def _function(path: str | None) -> Callable[..., object] | None:
    if path is None:
        return None
    module, _, name = path.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _no_callback(path, str(error)) from error
    if not callable(found):
        raise _no_callback(path, "no function")
    function: Callable[..., object] = found
    return function


def _no_callback(path: str, why: str) -> ConfigError:
    return ConfigError(
        field="callback",
        value=f"{path} ({why})",
        origin="--callback",
        allowed="MODULE:FUNCTION that can be imported",
    )


def started_producer(
    stack: ExitStack,
    checker: Callable[[MessageView], Answer],
    config: BridgeConfig,
    tracing: OpenTelemetryTracing | None = None,
) -> TransactionProducer:
    """Return the started producer of a service; the stack closes it."""
    # Imported here: --help needs neither SQLAlchemy nor the Kafka client.
    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.service import CLOSE_S_MAX

    producer = TransactionProducer(checker=checker, config=config, tracing=tracing)
    stack.callback(producer.close, CLOSE_S_MAX)
    producer.start()
    return producer


def run_until_signal(
    stack: ExitStack, service: RelayRunner, values: dict[str, Any], *, says: str
) -> None:
    """Run a service until SIGTERM or Ctrl-C; SIGUSR1 switches its log to debug, and back."""
    from halfbridge.checker.process.http import serve
    from halfbridge.signals import LEVEL_SIGNAL, STOP_SIGNALS, on_signals

    level = LevelSwitch(values["log_level"])

    def react(number: int) -> None:
        if number == LEVEL_SIGNAL:
            level.toggle()
        else:
            service.stop()

    host, port = values["metrics_host"], values["metrics_port"]
    if port is not None:
        server = serve(service.metrics.registry, service.health, host=host, port=port)
        stack.callback(server.close)
        click.echo(f"metrics on {host}:{server.port}")
    click.echo(says)
    stack.enter_context(on_signals(react, signals=(*STOP_SIGNALS, LEVEL_SIGNAL)))
    service.run()


# Time-out of a question for the change topic's id: the relay writes nothing meanwhile, as with
# `changes.writing._SETTINGS_S`. Brokers answer in milliseconds, or are away.
_ID_S = 3.0


def run_changes(values: dict[str, Any]) -> int:
    """Relay changes until SIGTERM or Ctrl-C; return the exit status."""
    if values["map_file"] is None:
        raise click.UsageError("--changes needs --map", click.get_current_context(silent=True))
    # Imported here: --help does not need the Kafka client.
    from halfbridge.changes.mapping import load_mapping
    from halfbridge.changes.service import ChangesRelay
    from halfbridge.changes.writing import ChangesSetup
    from halfbridge.checker.loop.clients import client_config
    from halfbridge.checker.process.slots import (
        claim,
        default_state_dir,
        installation_key,
        sanitise,
    )
    from halfbridge.kafka.adapter import system_ports
    from halfbridge.kafka.admin import TopicIds

    config = load_settings(CheckerConfig, values)
    mapping = load_mapping(values["map_file"])
    topic = values["changes"]
    group = values["changes_group"] or f"{config.topic_prefix}halfbridge-changes-{topic}"
    with ExitStack() as stack:
        if config.slot:
            slot = sanitise(config.slot)
        else:
            directory = config.state_dir or default_state_dir(environment.variables())
            slot = stack.enter_context(claim(directory, installation=installation_key(group))).name
        ids = TopicIds(client_config(config))
        key = hashlib.sha256(group.encode()).hexdigest()[:12]
        setup = ChangesSetup(
            topic=topic,
            mapping=mapping,
            config=config,
            group=group,
            slot=slot,
            transactional_id=f"{config.topic_prefix}halfbridge-changes-{key}-{slot}",
            schemas=_schemas(values["schema_registry"]),
            topic_id=lambda: ids.ask(topic, _ID_S),
            accept_lost=values["accept_lost"],
        )
        relay = ChangesRelay(setup, system_ports())
        says = f"relaying changes of {topic} in group {group} as {slot}"
        run_until_signal(stack, relay, values, says=says)
    return 0


def _schemas(url: str | None) -> Schemas:
    return (lambda _number: None) if url is None else registry_at(url).schema


def _apply(url: str, plan: ConnectorPlan, config: dict[str, str]) -> None:
    from halfbridge.connect.rest import ConnectRest, KafkaConnectError

    try:
        ConnectRest(url).apply(plan.name, config)
    except KafkaConnectError as error:
        raise click.ClickException(str(error)) from error
    topics = ", ".join(f"{plan.name}.{each}" for each in _topics(config))
    click.echo(f"connector {plan.name} runs; topics: {topics}")


def _topics(config: dict[str, str]) -> list[str]:
    return [each.replace("\\", "") for each in config["table.include.list"].split(",")]
