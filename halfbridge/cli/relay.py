"""`halfbridge relay`: send the messages of a local message table, or a database's changes."""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from halfbridge.bridge.config import BridgeConfig
from halfbridge.cli.database import opened
from halfbridge.cli.local_messages import opened_table, table_options
from halfbridge.cli.options import load_settings, logging_options, settings_options
from halfbridge.cli.relay_changes import changes_options, run_changes
from halfbridge.cli.relay_connector import connector
from halfbridge.cli.relay_process import run_until_signal, started_producer
from halfbridge.kafka.errors import ConfigError
from halfbridge.logs import log_to_stderr
from halfbridge.sql.bounds import CHECK_BOUNDS, RELAY_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.writer import LocalMessages

_BRIDGE_SETTINGS = (
    *("bootstrap_servers", "producer_group", "topic_prefix", "kafka"),
    *("transaction_timeout_ms", "transaction_age_ms_max"),
)


@click.group()
def relay() -> None:
    """Send the messages of a local message table, or a database's changes."""


relay.add_command(connector)


def _relay_options(command: Any) -> Any:
    from halfbridge.sql.local_messages.config import RelayConfig

    return settings_options(RelayConfig, has_file=False)(command)


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
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="For metrics.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="For metrics and health; 0: a free one."
)
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
        producer = started_producer(stack, checking, bridge_config)
        made = Relay(messages, fence, producer, relay_config)
        service = RelayService(made, producer, callback=callback)
        says = f"relaying {messages.tables.messages.fullname} as {made.owner}"
        run_until_signal(stack, service, made.metrics.registry, values, says=says)


def _function(path: str | None) -> Callable[..., Any] | None:
    """Return the function that `--callback` names.

    Raises:
        ConfigError: The function does not exist; the user corrects the command.
    """
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
    function: Callable[..., Any] = found
    return function


def _no_callback(path: str, why: str) -> ConfigError:
    return ConfigError(
        field="callback",
        value=f"{path} ({why})",
        origin="--callback",
        allowed="MODULE:FUNCTION that can be imported",
    )
