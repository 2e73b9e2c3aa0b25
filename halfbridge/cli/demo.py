"""`halfbridge demo`: the whole protocol on a real broker, in under a minute."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import click

from halfbridge.cli.options import require_extra
from halfbridge.cli.table import table

_ORDERS_MIN = 10  # at least one order of each kind
_ORDERS_MAX = 100_000  # some minutes


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.option(
    "--orders",
    type=click.IntRange(_ORDERS_MIN, _ORDERS_MAX),
    default=2000,
    show_default=True,
    help="Orders to place.",
)
@click.option("--spark", is_flag=True, help="Read and audit the run with Spark at the end.")
@click.option("--keep-dir", is_flag=True, help="Keep logs and database, and print their place.")
def demo(*, as_json: bool, orders: int, keep_dir: bool, spark: bool) -> int:
    """Show the whole protocol: 2,000 orders, with crashes.

    Starts a real Kafka broker, the checker, and order services with SQLite and a fence. Some orders
    are rolled back. Some services are killed between their local commit and their decision. Some
    orders are never decided: the fence proves the rollback, or without a fence they become dead
    letters.

    Exit status 0 only if every committed message arrived exactly once, in per-key order, and no
    other one did. With --spark, Spark's audit of all topics must find nothing either.
    """
    require_extra("sql", "the order service", "sqlalchemy")
    if spark:
        require_extra("spark", "--spark", "pyspark")
    # Imported here: --help does not need the Kafka client.
    from halfbridge.demo import run_demo
    from halfbridge.testkit.children import ChildFailedError, InterruptedRunError

    try:
        found = run_demo(
            orders, say=partial(click.echo, err=True), keep_directory=keep_dir, spark=spark
        )
    except InterruptedRunError as error:
        raise click.Abort from error
    except (ChildFailedError, RuntimeError) as error:  # no jars, no Java, no broker: it says which
        click.echo(str(error), err=True)
        raise click.ClickException(str(error).splitlines()[0]) from error
    if as_json:
        click.echo(json.dumps(found))
    else:
        rows = [(kind, *counts.values()) for kind, counts in found["kinds"].items()]
        click.echo("\n".join(table(("messages", "expected", "delivered", "dead-lettered"), rows)))
        click.echo(_verdict(found))
    return 0 if found["ok"] else 1


def _verdict(found: dict[str, Any]) -> str:
    took = f"({found['seconds']} s)"
    if found["ok"]:
        audited = ", and Spark's audit found nothing" if "spark" in found else ""
        order = "every committed message arrived exactly once, in per-key order"
        return f"OK: {order}, and no other one did{audited} {took}"
    counts = f"{found['lost']} lost, {found['duplicates']} duplicated"
    return f"FAILED: {counts}, {found['out_of_order']} out of order {took}"
