"""Measures the time that a state saves: an audit of many transactions, then one of --new more.

    python tests/spark/bench_audit_state.py --transactions 4000000

Spark generates the facts, so that neither Kafka nor the start of the session counts: an audit of
real topics also reads and decodes their records. Both must find exactly the seeded defects, or
the bench fails. Prints the seconds from the start of each audit to each of its lines as JSON.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file, not as a module

from halfbridge.serde.records import OpKind, OpSource
from halfbridge.spark_jobs.audit import facts as columns
from halfbridge.spark_jobs.audit.bounds import Bounds
from halfbridge.spark_jobs.audit.facts import FACTS, all_facts
from halfbridge.spark_jobs.audit.run import audited
from halfbridge.spark_jobs.audit.state import State
from halfbridge.spark_jobs.reading.offsets import Range, Snapshot
from halfbridge.spark_jobs.session.local import spark_session
from tests.spark.tape import NAMES, ORDERS, START_MS

PAIRS = 4
KEYS = 1_000
UNDECIDED_EVERY = 50
PUT_BACK_EVERY = 33  # such a transaction is not plain
LOST_EVERY = 10_000
ANSWERED_EVERY = 1_000  # one record of an old transaction per this many new ones
END = 1 << 40


@click.command()
@click.option("--transactions", default=1_000_000, show_default=True)
@click.option("--new", default=10_000, show_default=True)
@click.option("--rounds", default=2, show_default=True)
def main(*, transactions: int, new: int, rounds: int) -> None:
    """Run the bench."""
    with tempfile.TemporaryDirectory() as directory, spark_session("bench", options={}) as spark:
        _audit(spark, _facts(0, 1_000), None)  # Spark's first queries compile and load classes
        whole = [_audit(spark, _facts(0, transactions), None) for _ in range(rounds)]
        steps = [_audit(spark, _facts(0, transactions), directory)]
        for number in range(rounds):
            first = transactions + number * new
            steps.append(_audit(spark, _facts(first, new), directory))
    click.echo(json.dumps({"whole": whole, "with state": steps}))


def _audit(
    spark: SparkSession,
    make: Callable[[SparkSession], DataFrame],
    directory: str | None,
) -> dict[str, float]:
    started_s, steps = monotonic(), {}

    def note(line: str) -> None:
        steps[line] = round(monotonic() - started_s, 1)
        click.echo(f"{steps[line]:7.1f} s  {line}", err=True)

    ranges = {number: Range(0, END) for number in range(PAIRS)}
    known = dict.fromkeys(range(PAIRS), END)
    topics = dict.fromkeys((NAMES.half, NAMES.op, NAMES.dead, ORDERS), ranges)
    snapshot = Snapshot("", START_MS, topics, (ORDERS,), known, known)
    state = State(spark, directory, {}) if directory else None
    carried = state.carried() if state else None
    with audited(make(spark), Bounds(snapshot), progress=note, carried=carried) as audit:
        note(f"{audit.violations} violations")
        if state:
            state.write(audit)
        note("end")
        if audit.violations != sum(audit.states.values()) // LOST_EVERY:
            raise click.ClickException(f"{audit.violations} found")
    return steps


def _facts(first: int, count: int) -> Callable[[SparkSession], DataFrame]:
    """Return a function that makes facts of transactions: halves, ops, deliveries, late answers."""
    number, place = F.col("id"), F.floor(F.col("id") / PAIRS)
    common = {
        "transaction_id": F.lpad(F.hex(number), 32, "0"),
        "partition": number % PAIRS,
        "offset": place,
        "append_ms": F.lit(START_MS),
        "first_ms": F.lit(START_MS),
    }
    life = {
        "pair": number % PAIRS,
        "resume_count": F.lit(0),
        "life_hash": F.xxhash64(number % PAIRS),
    }
    message = {"topic": F.lit(ORDERS), "content_hash": F.xxhash64("id")}
    half = {
        **common,
        **life,
        **message,
        "record_type": F.lit(columns.IS_HALF),
        "message_index": F.lit(0),
        "origin_offset": place,
        "requested_partition": F.lit(-1),
        "is_flawed": F.lit(col=False),
        "size_bytes": F.lit(200),
    }
    op = {
        **common,
        **life,
        "record_type": F.lit(columns.IS_OP),
        "kind": F.lit(OpKind.COMMIT.value),
        "source": F.lit(OpSource.PRODUCER.value),
        "age_ms": F.lit(0),
        "op_half_offset": place,
        "message_count": F.lit(1),
    }
    key = F.xxhash64(number % PAIRS, number % KEYS)
    real = {
        **common, **message, "record_type": F.lit(columns.IS_REAL), "order_key": key
    }  # fmt: skip
    answer = {**op, "kind": F.lit(OpKind.UNKNOWN.value)}
    copy = {**half, "offset": place + END // 2}

    def make(spark: SparkSession) -> DataFrame:
        ids = spark.range(first, first + count)
        decided = ids.where(number % UNDECIDED_EVERY != 0)
        old = spark.range(1, 1 + (count if first else 0), ANSWERED_EVERY)
        return all_facts(
            _rows(ids, half),
            _rows(ids.where(number % PUT_BACK_EVERY == 0), copy),
            _rows(decided, op),
            _rows(decided.where(number % LOST_EVERY != LOST_EVERY - 1), real),
            _rows(old, answer),
        )

    return make


def _rows(ids: DataFrame, given: dict[str, Any]) -> DataFrame:
    def column(name: str) -> Column:
        return given.get(name, F.lit(None))

    return ids.select(*(column(name).cast(kind).alias(name) for name, kind in FACTS.items()))


if __name__ == "__main__":
    main()
