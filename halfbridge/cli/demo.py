"""`halfbridge demo`: the whole of it on a real broker, in under a minute."""

from __future__ import annotations

import json

import click

from halfbridge.demo.plan import ORDERS_MIN

_ORDERS_MAX = 100_000


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.option(
    "--orders",
    type=click.IntRange(ORDERS_MIN, _ORDERS_MAX),
    default=2000,
    show_default=True,
    help="Orders to place.",
)
@click.option("--keep-dir", is_flag=True, help="Leave logs and database behind and say where.")
def demo(*, as_json: bool, orders: int, keep_dir: bool) -> int:
    """Show the whole of it: 2,000 orders, crashes included.

    Starts a real Kafka broker, the checker, an order service with a SQLite database and an
    independent read_committed consumer, each a process of its own. Some orders are rolled back,
    some services are killed between their local commit and their decision, some orders are
    never decided. The table counts messages: "expected" is what must come out, delivered or
    dead-lettered. Exit status 0 only if every committed message arrived exactly once, in
    per-key order, and no other one did.
    """
    # Late: they bring the Kafka client and rich, which --help does not need.
    from rich.console import Console  # noqa: PLC0415

    from halfbridge.demo.display import make_table, verdict_line  # noqa: PLC0415
    from halfbridge.demo.run import run_demo  # noqa: PLC0415
    from halfbridge.testkit.children import (  # noqa: PLC0415
        ChildFailedError,
        InterruptedRunError,
    )
    from halfbridge.testkit.node import BrokerStartError  # noqa: PLC0415
    from spark_jobs.ivy import JarsError  # noqa: PLC0415
    from spark_jobs.jvm import JavaNotFoundError  # noqa: PLC0415

    errors = Console(stderr=True)
    try:
        result = run_demo(orders, console=errors, keep_directory=keep_dir)
    except InterruptedRunError as error:
        raise click.Abort from error
    except (BrokerStartError, ChildFailedError, JarsError, JavaNotFoundError) as error:
        errors.print(str(error), highlight=False, markup=False)
        raise click.ClickException(str(error).splitlines()[0]) from error
    if not result.ok:
        errors.print(result.verdict.describe(), highlight=False, markup=False)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        Console().print(make_table(result))
        click.echo(verdict_line(result))
    return 0 if result.ok else 1
