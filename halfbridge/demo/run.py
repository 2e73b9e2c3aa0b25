"""Starts the demo's processes, and ends them in every case."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge.demo import scenario
from halfbridge.demo.display import Display
from halfbridge.demo.plan import expectations, make_plan
from halfbridge.demo.spark import read_with_spark
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.children import Children, Interrupts
from halfbridge.testkit.jars import broker_jars

if TYPE_CHECKING:
    from rich.console import Console

    from halfbridge.demo.result import DemoResult
    from halfbridge.demo.spark import SparkResult


def run_demo(
    orders: int, *, console: Console, keep_directory: bool = False, spark: bool = False
) -> tuple[DemoResult, SparkResult | None]:
    """Run the demo with `orders` orders, and return its result.

    Args:
        orders: Number of orders; at least plan.ORDERS_MIN.
        console: Shows the progress, on standard error.
        keep_directory: Keep logs, database and client histories in a temporary directory.
        spark: Read and audit the run with Spark at the end. Spark must be installed.

    Returns:
        The demo's own result, and Spark's result if `spark`.

    Raises:
        ChildFailedError: A process ended by itself; its last output is in the message.
        InterruptedRunError: SIGINT, SIGTERM or SIGHUP was received.
        ValueError: There are too few orders.
    """
    plan = make_plan(orders)
    wanted = expectations(plan).values()
    broker_jars()  # may take minutes the first time; Ctrl-C interrupts it
    started_s = time.monotonic()
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        directory = Path(tempfile.mkdtemp(prefix="halfbridge-demo-"))
        if keep_directory:
            stack.callback(console.print, f"kept: {directory}", highlight=False, soft_wrap=True)
        else:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        display = stack.enter_context(
            Display(
                console,
                orders=sum(order.is_decided_by_service for order in plan),
                delivered=sum(kind.delivered for kind in wanted),
                dead_lettered=sum(kind.dead_lettered for kind in wanted),
            )
        )
        display.step("starting a real Kafka broker")
        broker = stack.enter_context(EmbeddedBroker())
        children = stack.enter_context(
            Children(directory, interrupts=interrupts, keep_directory=keep_directory)
        )
        stage = scenario.Stage(
            plan=plan,
            bootstrap_servers=broker.bootstrap_servers,
            directory=directory,
            children=children,
            display=display,
        )
        result = scenario.run(stage, started_s=started_s)
        return result, read_with_spark(stage, result) if spark else None
