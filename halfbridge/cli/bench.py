"""`halfbridge bench`: throughput and latency, end to end, as ratios to a plain producer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from halfbridge.bench.config import HEAD_BYTES, BenchConfig
from halfbridge.bridge.config import BridgeConfig

if TYPE_CHECKING:
    from halfbridge.bench.result import BenchResult

_MESSAGES_MAX = 10_000_000
_LINGER_MS_FULL_SPEED = 5.0
# Required settings, to read the client's defaults.
_NAMED = {"bootstrap_servers": "127.0.0.1:9092", "producer_group": "bench"}
_SIZE_MAX = 900_000  # a half message must stay below Kafka's default of 1 MiB


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
    "--bootstrap-servers", default="", help="The cluster to use. Without it a broker is started."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
def bench(**values: Any) -> int:
    """Measure throughput and latency, end to end.

    Client, checker and a read_committed consumer are separate processes. The same run measures a
    plain idempotent producer on this machine: compare ratios, not figures. Settings of client and
    checker come from HALFBRIDGE_ variables. Exit status 0 only if nothing was lost or duplicated.
    """
    # Imported here: --help does not need the Kafka client.
    from halfbridge.bench.run import run_bench
    from halfbridge.spark_jobs.session.ivy import JarsError
    from halfbridge.spark_jobs.session.jvm import JavaNotFoundError
    from halfbridge.testkit.children import (
        ChildFailedError,
        InterruptedRunError,
    )
    from halfbridge.testkit.node import BrokerStartError

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
        linger_ms=_linger_ms(values),
        bootstrap_servers=values["bootstrap_servers"],
    )
    try:
        result = run_bench(config, say=lambda text: click.echo(text, err=True))
    except InterruptedRunError as error:
        raise click.Abort from error
    except (BrokerStartError, ChildFailedError, JarsError, JavaNotFoundError) as error:
        click.echo(str(error), err=True)
        raise click.ClickException(str(error).splitlines()[0]) from error
    click.echo(json.dumps(result.to_json()) if values["as_json"] else _text(result))
    return 0 if result.ok else 1


def _linger_ms(values: dict[str, Any]) -> float:
    if values["linger_ms"] is not None:
        return float(values["linger_ms"])
    full_speed = not values["rate"] and not values["threads"]
    return (
        _LINGER_MS_FULL_SPEED if full_speed else BridgeConfig.from_environ({}, **_NAMED).linger_ms
    )


def _text(result: BenchResult) -> str:
    found = result.to_json()
    latency = found["latency_ms"]
    lines = [
        f"transactions/s      {found['transactions_per_s']:,.0f}",
        f"plain produce/s     {found['plain_produce_per_s']:,.0f}",
        f"ratio to plain      {found['ratio_to_plain']:.4f}",
        f"latency ms          p50 {latency['p50']}, p99 {latency['p99']}, max {latency['max']}",
        f"lost, duplicates    {found['lost']}, {found['duplicates']}",
    ]
    for name in ("client", "checker"):
        used = found[name]
        lines.append(f"{name:<20}{used['cpu_s']} CPU s, {used['rss_mb_max']} MiB at most")
    return "\n".join(lines)
