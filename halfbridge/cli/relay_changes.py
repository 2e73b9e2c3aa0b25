"""`halfbridge relay run --changes`: relay a topic of Debezium's change events."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.options import load_settings, settings_options
from halfbridge.cli.relay_process import run_until_signal
from halfbridge.cli.schema_registry import REGISTRY_VARIABLE, SchemaRegistry
from halfbridge.kafka.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.changes.values import Schemas

F = TypeVar("F", bound="Callable[..., Any]")
# Time-out of a question for the change topic's id: the relay writes nothing meanwhile.
_ID_S = 3.0
# Settings of the daemon that mean the same for a relay of changes.
_SETTINGS = (
    *("kafka_txn_timeout_ms", "batch_records_max", "batch_bytes_max", "session_timeout_ms"),
    *("topic_gone_ms", "slot", "state_dir"),
)


def changes_options(command: F) -> F:
    """Add the options of a relay of changes; without --changes they are unused."""
    options = (
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
    for option in reversed(options):
        command = option(command)
    return settings_options(CheckerConfig, only=_SETTINGS, has_file=False)(command)


def run_changes(values: dict[str, Any]) -> int:
    """Relay changes until SIGTERM or Ctrl-C; return the exit status.

    Args:
        values: Values of `changes_options`, and bootstrap_servers, topic_prefix, kafka,
            metrics_host, metrics_port and log_level.

    Raises:
        UsageError: An option is missing.
        BridgeError: As in ChangesRelay.run.
    """
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
            directory = config.state_dir or default_state_dir(os.environ)
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
        run_until_signal(stack, relay, relay.metrics.registry, values, says=says)
    return 0


def _schemas(url: str | None) -> Schemas:
    if url is None:
        return lambda _number: None
    registry = SchemaRegistry(url)

    def ask(number: int) -> dict[str, Any] | None:
        try:
            return registry.schema(number)
        except click.ClickException as error:
            raise RetriableError(error.message) from error

    return ask
