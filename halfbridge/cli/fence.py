"""`halfbridge fence`: create, show and purge the table of a fence, and answer checks from it."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from halfbridge import environment
from halfbridge.bridge.config import BridgeConfig, read_toml
from halfbridge.cli.options import (
    database_options,
    json_option,
    logging_options,
    metrics_options,
    opened,
    settings_options,
)
from halfbridge.kafka.errors import ConfigError
from halfbridge.logs import log_to_stderr
from halfbridge.serde.settings import describe, load, setting, variable
from halfbridge.serde.units import DAY_MS, MS_PER_S
from halfbridge.sql.bounds import CHECK_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.bridge.tracing import OpenTelemetryTracing
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
_table_options = database_options(_DEFAULT_TABLE)


@click.group()
def fence() -> None:
    """Create, show and purge the table of a fence, and answer checks from it."""


@fence.command()
@_table_options
@json_option
def create(*, url: str, name: str, schema: str | None, as_json: bool) -> int:
    """Create the table and its own rows if they do not exist.

    The command may be repeated. If a migration tool creates the table, this command adds the rows.
    """
    with opened(url) as engine:
        from halfbridge.sql.fence_table import FenceTable

        table = FenceTable(engine, name=name, schema=schema)
        table_id = table.create()
    if as_json:
        click.echo(json.dumps({"table": table.table.fullname, "table_id": table_id}))
    else:
        click.echo(f"{table.table.fullname} is there: table {table_id}")
    return 0


@fence.command()
@_table_options
@json_option
def show(*, url: str, name: str, schema: str | None, as_json: bool) -> int:
    """Show the number of rows and the oldest row; reads the whole table."""
    with opened(url) as engine:
        from halfbridge.sql.fence_table import FenceTable

        table = FenceTable(engine, name=name, schema=schema)
        report = table.report()
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return 0
    click.echo(f"table     {report.info.table_id}")
    click.echo(f"purged    {_before(report.info.purged_before_ms)}")
    click.echo(f"oldest    {_when(report.oldest_ms)}")
    for group, counts in report.groups.items():
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        click.echo(f"rows      {group}: {summary}")
    if report.lossy_settings:
        click.echo(f"advice    this server may lose commits: {report.lossy_settings}")
    return 0


@fence.command()
@_table_options
@click.option(
    "--transaction-age-ms-max",
    type=click.IntRange(min=1),
    default=3 * DAY_MS,
    show_default=True,
    help="The daemon's setting.",
)
@click.option(
    "--dead-letter-retention-ms",
    type=click.IntRange(min=0),
    default=30 * DAY_MS,
    show_default=True,
    help="retention.ms of the dead-letter topic.",
)
@click.option(
    "--older-than-ms",
    type=click.IntRange(min=0),
    default=None,
    help="Least age of deleted rows. [default: the least age that is allowed]",
)
@json_option
def purge(*, url: str, name: str, schema: str | None, as_json: bool, **limits: Any) -> int:
    """Delete rows that no check needs any more.

    Rows are kept if they are younger than max(2 x transaction_age_ms_max, dead_letter_retention_ms
    + transaction_age_ms_max, 25 hours). The command may be interrupted and repeated.
    """
    with opened(url) as engine:
        from halfbridge.sql import fence_purge
        from halfbridge.sql.fence_table import FenceTable

        table = FenceTable(engine, name=name, schema=schema)
        try:
            done = fence_purge.purge(table, **limits, progress=_progress(as_json=as_json))
        except ValueError as error:
            raise click.UsageError(str(error), click.get_current_context()) from error
    if as_json:
        click.echo(json.dumps(asdict(done)))
    else:
        click.echo(f"deleted {done.rows} rows of transactions {_before(done.purged_before_ms)}")
    return 0


@fence.command()
@database_options(_DEFAULT_TABLE, needs_url=False)
@metrics_options
@logging_options
@click.option(
    "--tracing",
    is_flag=True,
    envvar="HALFBRIDGE_TRACING",
    help="Make spans of checks, with OpenTelemetry. [HALFBRIDGE_TRACING]",
)
@settings_options(BridgeConfig, only=_SETTINGS)
def respond(**values: Any) -> int:
    """Answer checks of a producer group from its fence until SIGTERM or Ctrl-C.

    For services that do not always run. The table must exist; SELECT and INSERT on it are enough.

    For several groups, --config names a file with a table [[fence]] for each: producer_group, url,
    and name and schema of the table where they are not the defaults.
    """
    plans = planned(values, environment.variables())
    log_to_stderr(values["log_level"], values["log_format"])
    # Imported here: --help needs neither SQLAlchemy nor the Kafka client.
    from halfbridge.cli.relay import run_until_signal, started_producer

    with ExitStack() as stack:
        tracing = _tracing(stack) if values["tracing"] else None
        fences = [_opened_fence(stack, config, settings) for config, settings in plans]
        from halfbridge.sql.responder import Responder, answering

        members = [
            (fence, started_producer(stack, answering(fence), config, tracing))
            for fence, (config, _) in zip(fences, plans, strict=True)
        ]
        described = ", ".join(
            f"{fence.producer_group} from {fence.engine.url!r}" for fence in fences
        )
        run_until_signal(stack, Responder(members), values, says=f"answering checks of {described}")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceSettings:
    """One `[[fence]]` table of the file."""

    refusal = ConfigError

    producer_group: str = setting("", doc="Name of the producer group.")
    url: str = setting("", secret=True, doc="SQLAlchemy URL of its database; else --url.")
    name: str = setting(_DEFAULT_TABLE, doc="Name of the fence's table.")
    schema: str | None = setting(None, doc="Schema of the table.")


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


def _tracing(stack: ExitStack) -> OpenTelemetryTracing:
    """Return what makes the spans of checks, which are exported when the stack ends.

    Raises ConfigError: OpenTelemetry or its exporter is not installed; the operator installs it.
    """
    from halfbridge.checker.process.tracing import export_spans, flush_spans, span_exporter

    export_spans(span_exporter(environment.variables()))
    stack.callback(flush_spans)
    from halfbridge.bridge.tracing import OpenTelemetryTracing

    return OpenTelemetryTracing()


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


def _progress(*, as_json: bool) -> Any:
    """Return a function that shows the progress in one line; None without a terminal."""
    if as_json or not sys.stderr.isatty():
        return None
    return lambda rows: click.echo(f"\r{rows} rows deleted", err=True, nl=False)


def _before(at_ms: int | None) -> str:
    return "nothing yet" if at_ms is None else f"born before {_when(at_ms)}"


def _when(at_ms: int | None) -> str:
    if at_ms is None:
        return "none"
    return datetime.fromtimestamp(at_ms / MS_PER_S, timezone.utc).isoformat(timespec="seconds")
