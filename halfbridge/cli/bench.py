"""`halfbridge bench`: throughput and latency, end to end, as ratios to a plain producer."""

from __future__ import annotations

import json
import shlex
from functools import partial
from typing import Any

import click

from halfbridge.bench.load import HEAD_BYTES, BenchConfig
from halfbridge.serde.topics import PAIRS

_MESSAGES_MAX = 10_000_000  # 10 GB on the broker, at 1 KiB each
_SIZE_MAX = 900_000  # a half message must stay below Kafka's default of 1 MiB


@click.command(context_settings={"show_default": True})
@click.option("--messages", type=click.IntRange(1, _MESSAGES_MAX), default=200_000)
@click.option(
    "--size", "size_bytes", type=click.IntRange(HEAD_BYTES, _SIZE_MAX), default=1024, help="Bytes."
)
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
    "--tasks",
    type=click.IntRange(0, 100_000),
    default=0,
    help="Tasks of an asyncio client that await send and commit; 0: no asyncio.",
)
@click.option(
    "--warmup",
    "warmup_s",
    type=click.FloatRange(0, 600),
    default=25,
    help="Load before measuring, seconds.",
)
@click.option(
    "--pairs",
    type=click.IntRange(1, 100),
    default=PAIRS,
    help="Partitions of half and op topic; the default is that of `topics create`.",
)
@click.option(
    "--partitions", type=click.IntRange(1, 100), default=4, help="Partitions of the real topic."
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
@click.option(
    "--bootstrap-servers", default="", help="The cluster to use. Without it a broker is started."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
def bench(*, as_json: bool, daemon_arguments: str, **values: Any) -> int:
    """Measure throughput and latency, end to end.

    Client, checker and a read_committed consumer are separate processes. The same run measures a
    plain idempotent producer on this machine: compare ratios, not figures. Settings of client and
    checker come from HALFBRIDGE_ variables. Exit status 0 only if nothing was lost or duplicated.
    """
    # Imported here: --help does not need the Kafka client.
    from halfbridge.bench.result import run_report
    from halfbridge.bench.run import run_bench
    from halfbridge.java.jvm import JavaNotFoundError
    from halfbridge.java.locked_jars import JarsError
    from halfbridge.testkit.broker import BrokerStartError
    from halfbridge.testkit.children import ChildFailedError, InterruptedRunError

    if values["threads"] and values["tasks"]:
        raise click.UsageError("--threads and --tasks are two clients; give one of them")
    config = BenchConfig(**values, daemon_arguments=tuple(shlex.split(daemon_arguments)))
    try:
        result = run_bench(config.with_linger(), say=partial(click.echo, err=True))
    except InterruptedRunError as error:
        raise click.Abort from error
    except (BrokerStartError, ChildFailedError, JarsError, JavaNotFoundError) as error:
        click.echo(str(error), err=True)
        raise click.ClickException(str(error).splitlines()[0]) from error
    found = result.to_json()
    click.echo(json.dumps(found) if as_json else run_report(found))
    return 0 if result.ok else 1
