"""`halfbridge bench`: throughput and latency, end to end, as ratios to a plain producer."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbridge.bench.config import HEAD_BYTES, BenchConfig
from halfbridge.bench.rows import REBUILT, UNDECIDED, chosen, scale_rows, suite_rows

if TYPE_CHECKING:
    from halfbridge.bench.rows import Row

_MESSAGES_MAX = 10_000_000  # 10 GB on the broker, at 1 KiB each
_SIZE_MAX = 900_000  # a half message must stay below Kafka's default of 1 MiB
# What the rows of a suite say themselves.
_OF_ROWS = ("messages", "workers", "rate", "threads", "partitions")


@click.command(context_settings={"show_default": True})
@click.option("--messages", type=click.IntRange(1, _MESSAGES_MAX), default=200_000)
@click.option("--size", type=click.IntRange(HEAD_BYTES, _SIZE_MAX), default=1024, help="Bytes.")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 1_000_000),
    default=5_000,
    help="Most open transactions of the pipelined client.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, help="Workers of the checker.")
@click.option(
    "--rate",
    type=click.FloatRange(0, 1_000_000),
    default=0,
    help="Transactions a second, sent on schedule whatever happens; 0: as fast as possible.",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1000),
    default=0,
    help="Threads that block on send and on commit; 0: pipelined.",
)
@click.option(
    "--warmup", type=click.FloatRange(0, 600), default=25, help="Load before measuring, seconds."
)
@click.option(
    "--partitions", type=click.IntRange(1, 100), default=4, help="Of half, op and real topic."
)
@click.option(
    "--keys", type=click.IntRange(0, 1_000_000), default=1000, help="Distinct keys; 0: null."
)
@click.option(
    "--linger-ms",
    type=click.FloatRange(0, 1000),
    default=None,
    help="How long the client collects records for a batch.  [default: 5 when pipelined at full"
    " speed, which halves the broker's work; else the client's own default]",
)
@click.option(
    "--daemon-arguments",
    default="",
    show_default=False,
    metavar="WORDS",
    help="Further options of `halfbridge checker run`, in one argument.",
)
@click.option("--suite", is_flag=True, help="Measure a table of loads, one after the other.")
@click.option("--scale", is_flag=True, help="Measure workers, pairs and a restart instead.")
@click.option("--row", "names", multiple=True, metavar="NAME", help="Only this row of the table.")
@click.option(
    "--undecided",
    type=click.IntRange(1, _MESSAGES_MAX),
    default=None,
    help=f"Undecided transactions of the row.  [default: {UNDECIDED}; with --scale {REBUILT}]",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="With --suite: write latency and throughput as an SVG file.",
)
@click.option(
    "--bootstrap-servers", default="", help="The cluster to use. Without it a broker is started."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.pass_context
def bench(context: click.Context, /, **values: Any) -> int:
    """Measure throughput and latency, end to end.

    Client, checker and a read_committed consumer are separate processes. The same run measures a
    plain idempotent producer on this machine: compare ratios, not figures. Settings of client and
    checker come from HALFBRIDGE_ variables. Exit status 0 only if nothing was lost or duplicated.
    """
    # Imported here: --help does not need the Kafka client.
    from halfbridge.spark_jobs.session.ivy import JarsError
    from halfbridge.spark_jobs.session.jvm import JavaNotFoundError
    from halfbridge.testkit.children import (
        ChildFailedError,
        InterruptedRunError,
    )
    from halfbridge.testkit.node import BrokerStartError

    rows = _rows(context, values)
    config = BenchConfig(
        messages=values["messages"],
        size_bytes=values["size"],
        in_flight=values["in_flight"],
        workers=values["workers"],
        rate=values["rate"],
        threads=values["threads"],
        warmup_s=values["warmup"],
        partitions=values["partitions"],
        keys=values["keys"],
        linger_ms=values["linger_ms"],
        bootstrap_servers=values["bootstrap_servers"],
        daemon_arguments=tuple(shlex.split(values["daemon_arguments"])),
    )
    try:
        found, is_ok = _suite(rows, config) if rows else _run(config.with_linger())
    except InterruptedRunError as error:
        raise click.Abort from error
    except (BrokerStartError, ChildFailedError, JarsError, JavaNotFoundError) as error:
        click.echo(str(error), err=True)
        raise click.ClickException(str(error).splitlines()[0]) from error
    click.echo(_text(found, values, is_suite=bool(rows)))
    return 0 if is_ok else 1


def _rows(context: click.Context, values: dict[str, Any]) -> tuple[Row, ...]:
    """Return the rows of the suite that is wanted; none for a single run."""
    if not values["suite"] and not values["scale"]:
        for name in ("names", "undecided", "picture"):
            if values[name]:
                raise click.UsageError("--row, --undecided and --picture want --suite or --scale")
        return ()
    if values["suite"] and values["scale"]:
        raise click.UsageError("give --suite or --scale")
    for name in _OF_ROWS:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} has no effect here: each row has its own")
    if values["suite"]:
        rows = suite_rows(values["undecided"] or UNDECIDED)
    else:
        rows = scale_rows(values["undecided"] or REBUILT)
    try:
        return chosen(rows, values["names"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--row") from error


def _run(config: BenchConfig) -> tuple[dict[str, Any], bool]:
    from halfbridge.bench.run import run_bench

    result = run_bench(config, say=_say)
    return result.to_json(), result.ok


def _suite(rows: tuple[Row, ...], config: BenchConfig) -> tuple[dict[str, Any], bool]:
    from halfbridge.bench.suite import run_suite

    command = shlex.join(["halfbridge", *sys.argv[1:]])
    result = run_suite(rows, config, command=command, say=_say)
    return result.to_json(), result.ok


def _text(found: dict[str, Any], values: dict[str, Any], *, is_suite: bool) -> str:
    """Return what is printed, and write the picture if it is wanted."""
    from halfbridge.bench.picture import picture
    from halfbridge.bench.report import report, run_report

    if values["picture"]:
        values["picture"].write_text(picture(found), "utf-8")
    if values["as_json"]:
        return json.dumps(found)
    return report(found) if is_suite else run_report(found)


def _say(text: str) -> None:
    click.echo(text, err=True)
