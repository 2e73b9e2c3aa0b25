"""`halfbridge fence respond`: answer checks of producer groups from their databases alone."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from halfbridge.bridge.config import BridgeConfig, read_toml
from halfbridge.cli.options import (
    database_options,
    logging_options,
    metrics_options,
    opened,
    settings_options,
)
from halfbridge.kafka.errors import ConfigError
from halfbridge.logs import log_to_stderr
from halfbridge.serde.settings import describe, load, setting, variable
from halfbridge.sql.bounds import CHECK_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.sql.fence import Fence

_SETTINGS = (
    *("bootstrap_servers", "producer_group", "topic_prefix", "kafka"),
    *("key_file", "check_threads"),
)
_DEFAULT_TABLE = "halfbridge_fence"
_TABLES = "fence"  # the file's key
# Each group has Kafka clients and threads of its own, and closing one takes half a second: all of
# them close within the 30 s after which Kubernetes kills.
GROUPS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceSettings:
    """One `[[fence]]` table of the file."""

    refusal = ConfigError

    producer_group: str = setting("", doc="Name of the producer group.")
    url: str = setting("", secret=True, doc="SQLAlchemy URL of its database; else --url.")
    name: str = setting(_DEFAULT_TABLE, doc="Name of the fence's table.")
    schema: str | None = setting(None, doc="Schema of the table.")


@click.command()
@database_options(_DEFAULT_TABLE, needs_url=False)
@metrics_options
@logging_options
@settings_options(BridgeConfig, only=_SETTINGS)
def respond(**values: Any) -> int:
    """Answer checks of a producer group from its fence until SIGTERM or Ctrl-C.

    For services that do not always run. The table must exist; SELECT and INSERT on it are enough.

    For several groups, --config names a file with a table [[fence]] for each: producer_group, url,
    and name and schema of the table where they are not the defaults.
    """
    plans = planned(values, os.environ)
    log_to_stderr(values["log_level"], values["log_format"])
    # Imported here: --help needs neither SQLAlchemy nor the Kafka client.
    from halfbridge.cli.relay import run_until_signal, started_producer

    with ExitStack() as stack:
        fences = [_opened_fence(stack, config, settings) for config, settings in plans]
        from halfbridge.sql.responder import Responder, answering

        members = [
            (fence, started_producer(stack, answering(fence), config))
            for fence, (config, _) in zip(fences, plans, strict=True)
        ]
        described = ", ".join(
            f"{fence.producer_group} from {fence.engine.url!r}" for fence in fences
        )
        run_until_signal(stack, Responder(members), values, says=f"answering checks of {described}")
    return 0


def planned(
    values: Mapping[str, Any], environ: Mapping[str, str]
) -> list[tuple[BridgeConfig, FenceSettings]]:
    """Return the settings of each group, from options, `environ` and file.

    Raises ConfigError or UsageError: the user corrects options or file.
    """
    path = values["config_file"]
    file = dict(read_toml(path)) if path else {}
    tables = file.pop(_TABLES, None)
    flags = {each.name: values.get(each.name) for each in describe(BridgeConfig)}
    if tables is None:
        if not values["url"]:
            raise _usage(f"Missing option '--url' (or [[{_TABLES}]] tables in --config).")
        config = load(BridgeConfig, flags=flags, environ=environ, file=file)
        same = {name: values[name] for name in ("url", "name", "schema")}
        return [(config, FenceSettings(producer_group=config.producer_group, **same))]
    if flags["producer_group"] or "producer_group" in file:
        raise _usage(f"give one producer group and --url, or [[{_TABLES}]] tables, not both")
    environ = {**environ, variable("producer_group"): ""}
    found = []
    for settings in _read_tables(tables, url=values["url"] or ""):
        named = {**file, "producer_group": settings.producer_group}
        found.append((load(BridgeConfig, flags=flags, environ=environ, file=named), settings))
    return found


def _read_tables(tables: object, *, url: str) -> list[FenceSettings]:
    """Return the tables of the file, each checked; `url` is that of a table without one."""
    allowed = f"1 to {GROUPS_MAX} tables [[{_TABLES}]], each with producer_group and url"
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise _refused(_TABLES, "this value", allowed)
    if not 1 <= len(tables) <= GROUPS_MAX:
        raise _refused(_TABLES, f"{len(tables)} tables", f"{allowed}; more need another process")
    found = [load(FenceSettings, file={"url": url, **each}) for each in tables]
    groups = [each.producer_group for each in found]
    for each in found:
        if not each.producer_group:
            raise _refused("producer_group", "an empty or missing name", allowed)
        if not each.url:
            raise _refused("url", f"no URL for {each.producer_group}", f"{allowed}, or --url")
        if groups.count(each.producer_group) > 1:
            raise _refused("producer_group", repr(each.producer_group), "each group in one table")
    return found


def _opened_fence(stack: ExitStack, config: BridgeConfig, settings: FenceSettings) -> Fence:
    """Return a fence whose table exists, or whose database does not answer now.

    The latter is in log and health, and does not keep other databases from answering.
    """
    option = f"url of {settings.producer_group}"
    engine = stack.enter_context(opened(settings.url, bounds=CHECK_BOUNDS, option=option))
    from sqlalchemy.exc import SQLAlchemyError

    from halfbridge.sql.fence import Fence

    fence = Fence(
        engine,
        producer_group=config.producer_group,
        name=settings.name,
        schema=settings.schema,
    )
    with suppress(SQLAlchemyError):
        fence.table_id()
    return fence


def _usage(text: str) -> click.UsageError:
    return click.UsageError(text, click.get_current_context(silent=True))


def _refused(field: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(field=field, value=value, origin="the TOML file", allowed=allowed)
