"""Compares the sink with Spark's own Kafka sink, in one run on one broker.

    python -m benchmarks.spark_sink --rows 1000000 --value-bytes 200

Both write the same rows of a DataFrame in turn, `--rounds` times; the first, small round of each
is thrown away. The sink's time ends when the batch is committed: half messages, manifest and
decisions are durable. With --visible a daemon runs too, and the time until a read_committed
consumer has seen the last row is measured too. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.sink import register
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.children import Children, Interrupts
from halfbridge.testkit.reader import TopicReader
from tests.spark.sink_scene import SinkScene

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_ROWS = 20_000
VISIBLE_S_MAX = 1_800.0


def rows_of(spark: SparkSession, rows: int, value_bytes: int) -> DataFrame:
    """Return rows that cost Spark as little as rows can."""
    return spark.range(rows, numPartitions=2).selectExpr(
        "cast(id % 1000 AS string) AS key",
        f"rpad(cast(id AS string), {value_bytes}, 'x') AS value",
    )


class Bench:
    """Both sinks on one scene."""

    def __init__(self, spark: SparkSession, scene: SinkScene, value_bytes: int) -> None:
        self._spark = spark
        self._scene = scene
        self._value_bytes = value_bytes
        self._batch = 0

    def write(self, sink: str, rows: int) -> float:
        """Write `rows` rows; return how many seconds it took."""
        options = self._scene.options()
        del options["checkpointLocation"]
        if sink == "kafka":
            options = {k: v for k, v in options.items() if k not in ("app.id", "halfbridge.prefix")}
            options["topic"] = self._scene.fixes
        else:
            options["batch.id"] = str(self._batch)
            self._batch += 1
        frame = rows_of(self._spark, rows, self._value_bytes)
        began_s = time.perf_counter()
        frame.write.format(sink).mode("append").options(**options).save()
        return time.perf_counter() - began_s


def until_visible(scene: SinkScene, rows: int) -> float:
    """Start a daemon; return how many seconds passed until `rows` rows are visible."""
    began_s = time.perf_counter()
    scene.daemon()
    witness = TopicReader(scene.servers, [scene.orders])
    try:
        seen = 0
        while seen < rows:
            seen += len(witness.poll())
            if time.perf_counter() - began_s > VISIBLE_S_MAX:
                raise TimeoutError(f"{seen} of {rows} rows visible")
    finally:
        witness.close()
    return time.perf_counter() - began_s


@click.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--value-bytes", default=200, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--visible", is_flag=True, help="Run the daemon behind, and time deliveries.")
@click.option("--bootstrap-servers", default="", help="Instead of a broker of its own.")
def main(
    *, rows: int, value_bytes: int, rounds: int, visible: bool, bootstrap_servers: str
) -> None:
    """Compare the sink with Spark's own Kafka sink."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = bootstrap_servers or stack.enter_context(EmbeddedBroker()).bootstrap_servers
        interrupts = Interrupts()
        children = stack.enter_context(Children(directory / "logs", interrupts=interrupts))
        (directory / "logs").mkdir(exist_ok=True)
        scene = SinkScene(servers, f"bench{os.getpid()}-", directory, children).make()
        spark = stack.enter_context(
            spark_session("bench-sink", options={"spark.master": "local[2]"})
        )
        register(spark)
        bench = Bench(spark, scene, value_bytes)
        sinks = ("kafka", "txn_half")
        for sink in sinks:
            bench.write(sink, WARM_ROWS)
        took_s: dict[str, list[float]] = {sink: [] for sink in sinks}
        for _ in range(rounds):
            for sink in sinks:
                took_s[sink].append(bench.write(sink, rows))
        rates = {sink: rows / median(seconds) for sink, seconds in took_s.items()}
        reported: dict[str, Any] = {
            "rows": rows,
            "value_bytes": value_bytes,
            "rows_per_s": {sink: round(rate) for sink, rate in rates.items()},
            "seconds": {sink: [round(s, 2) for s in each] for sink, each in took_s.items()},
            "ratio": round(rates["txn_half"] / rates["kafka"], 3),
        }
        if visible:
            total = WARM_ROWS + rounds * rows
            seconds = until_visible(scene, total)
            reported["visible"] = {"rows": total, "rows_per_s": round(total / seconds)}
        click.echo(json.dumps(reported))


if __name__ == "__main__":
    main()
