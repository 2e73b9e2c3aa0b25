"""`halfbridge demo`: the whole protocol on a real broker, in under a minute."""

from __future__ import annotations

import importlib.util
import json

import click

from halfbridge.demo.plan import ORDERS_MIN

_ORDERS_MAX = 100_000  # some minutes


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.option(
    "--orders",
    type=click.IntRange(ORDERS_MIN, _ORDERS_MAX),
    default=2000,
    show_default=True,
    help="Orders to place.",
)
@click.option("--spark", is_flag=True, help="Read and audit the run with Spark at the end.")
@click.option("--keep-dir", is_flag=True, help="Keep logs and database, and print their place.")
def demo(*, as_json: bool, orders: int, keep_dir: bool, spark: bool) -> int:
    """Show the whole protocol: 2,000 orders, with crashes.

    Starts a real Kafka broker, the checker, an order service with a SQLite database and a fence,
    and an independent read_committed consumer, each in its own process. Some orders are rolled
    back. Some services are killed between their local commit and their decision. Some orders are
    never decided: the fence proves that they are rolled back. A few orders are begun without the
    fence and never decided: they become dead letters.

    The table counts messages. "expected" is the number that must be delivered or dead-lettered.
    Exit status 0 only if every committed message arrived exactly once, in per-key order, and no
    other message arrived. With --spark, which needs halfbridge[spark], Spark must also read the
    same rows, and its audit of all topics must find nothing.
    """
    # Imported here: --help needs neither the Kafka client nor rich.
    from rich.console import Console

    from halfbridge.demo.display import make_table, verdict_line
    from halfbridge.demo.run import run_demo
    from halfbridge.spark_jobs.session.ivy import JarsError
    from halfbridge.spark_jobs.session.jvm import JavaNotFoundError
    from halfbridge.testkit.children import (
        ChildFailedError,
        InterruptedRunError,
    )
    from halfbridge.testkit.node import BrokerStartError

    if importlib.util.find_spec("sqlalchemy") is None:
        raise click.ClickException(
            "the order service needs SQLAlchemy, which is not installed: pip install"
            " 'halfbridge[sql]'"
        )
    errors = Console(stderr=True)
    try:
        if spark:
            _fetch_spark()
        result, by_spark = run_demo(orders, console=errors, keep_directory=keep_dir, spark=spark)
    except InterruptedRunError as error:
        raise click.Abort from error
    except (BrokerStartError, ChildFailedError, JarsError, JavaNotFoundError) as error:
        errors.print(str(error), highlight=False, markup=False)
        raise click.ClickException(str(error).splitlines()[0]) from error
    if not result.ok:
        errors.print(result.verdict.describe(), highlight=False, markup=False)
    if as_json:
        found = result.to_json()
        if by_spark is not None:
            found["spark"] = by_spark.to_json()
        click.echo(json.dumps(found))
    else:
        Console().print(make_table(result))
        click.echo(verdict_line(result))
        if by_spark is not None:
            click.echo(by_spark.line())
    return 0 if result.ok and (by_spark is None or by_spark.ok) else 1


def _fetch_spark() -> None:
    """Find Java and jars for Spark before the demo starts, not after it."""
    if importlib.util.find_spec("pyspark") is None:
        raise click.ClickException(
            "--spark needs pyspark, which is not installed: pip install 'halfbridge[spark]'"
        )
    import pyspark

    from halfbridge.spark_jobs.session.jars import connector_jars
    from halfbridge.spark_jobs.session.local import find_spark_java

    find_spark_java()
    connector_jars(pyspark.__version__)
