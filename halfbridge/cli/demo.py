"""`halfbridge demo`: the whole protocol on a real broker, in under a minute."""

from __future__ import annotations

import json
from functools import partial

import click

from halfbridge.cli.options import require
from halfbridge.cli.table import table

# At least one order of each kind; at most some minutes.
_ORDERS = click.IntRange(10, 100_000)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.option("--orders", type=_ORDERS, default=2000, show_default=True, help="Orders to place.")
@click.option("--spark", is_flag=True, help="Read and audit the run with Spark at the end.")
@click.option("--keep-dir", is_flag=True, help="Keep logs and database, and print their place.")
def demo(*, as_json: bool, orders: int, keep_dir: bool, spark: bool) -> int:
    """Show the whole protocol: 2,000 orders, with crashes.

    Starts a real Kafka broker, the checker, and order services with SQLite and a fence. Some orders
    are rolled back, and some never decided. Some services are killed between local commit and
    decision. Exit status 0 only if every committed message arrived exactly once, in per-key order,
    and no other one did; with --spark, only if Spark's audit finds nothing either.
    """
    require("the order service", "sqlalchemy")
    if spark:
        require("--spark", "pyspark")
    from halfbridge.demo import run_demo
    from halfbridge.testkit.children import ChildFailedError, InterruptedRunError

    say = partial(click.echo, err=True)
    try:
        found = run_demo(orders, say=say, keep_directory=keep_dir, spark=spark)
    except InterruptedRunError as error:
        raise click.Abort from error
    except (ChildFailedError, RuntimeError) as error:  # no jars, no Java, no broker: it says which
        say(str(error))
        raise click.ClickException(str(error).splitlines()[0]) from error
    if as_json:
        click.echo(json.dumps(found))
    else:
        rows = [(kind, *counts.values()) for kind, counts in found["kinds"].items()]
        click.echo("\n".join(table(("messages", "expected", "delivered", "dead-lettered"), rows)))
        failed = "FAILED: {lost} lost, {duplicates} duplicated, {out_of_order} out of order"
        audited = ", and Spark's audit found nothing" if "spark" in found else ""
        good = "OK: every committed message arrived exactly once, in per-key order, and no other"
        good += f" one did{audited}"
        click.echo(f"{good if found['ok'] else failed.format(**found)} ({found['seconds']} s)")
    return 0 if found["ok"] else 1
