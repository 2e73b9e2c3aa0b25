"""Where the time of a transaction goes, step by step: `python -m benchmarks.steps --help`.

Client, worker and reader are processes of one machine, whose monotonic clock they share. Each notes
when a transaction passes its steps, by transaction id. The worker is the shipped one, on ports that
note the time of each call: the product has no switch for this, and pays nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.step_roles import GROUP, StepsRun
from halfbridge.bench.result import percentile
from halfbridge.bench.run import facts, make_topics
from halfbridge.kafka.admin import delete_groups, delete_topics
from halfbridge.serde.topics import PAIRS, TopicNames
from halfbridge.serde.units import NS_PER_MS
from halfbridge.testkit.children import Children, Interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.timed_ports import Noted
    from halfbridge.testkit.children import Child

# Each ends where the next begins; the first begins when the transaction is due.
STEPS = (
    "half message acknowledged",
    "decision acknowledged",
    "decision taken by the worker",
    "kafka_txn begun",
    "records handed over",
    "offsets sent",
    "records proven",
    "committed",
    "seen by a reader",
)
_START_S_MAX = 60.0  # three processes start while a broker compiles


def whole_ways(client: Noted, worker: Noted, reader: Noted) -> list[list[int]]:
    """Return the times of each transaction that passed all steps, the due time first. Pure."""
    whole = []
    for transaction_id, sent in client.items():
        times = [*sent, *worker.get(transaction_id, ()), *reader.get(transaction_id, ())]
        if len(times) == len(STEPS) + 1 and all(times):
            whole.append(times)
    return whole


def table(whole: Sequence[Sequence[int]]) -> str:
    """Return p50 and p99 of each step, and of the whole way, milliseconds. Pure.

    A worker may take a decision before its client has the acknowledgement: such a step is negative.
    """
    spans = [[row[at + 1] - row[at] for row in whole] for at in range(len(STEPS))]
    rows = [*zip(STEPS, spans, strict=True), ("all", [row[-1] - row[0] for row in whole])]
    lines = [f"{len(whole)} transactions", f"{'step, ms':<32}{'p50':>8}{'p99':>9}"]
    for name, span in rows:
        ordered = sorted(span)
        p50, p99 = (percentile(ordered, each) / NS_PER_MS for each in (50, 99))
        lines.append(f"{name:<32}{p50:>8.2f}{p99:>9.2f}")
    return "\n".join(lines)


def measure(run: StepsRun) -> list[list[int]]:
    names = TopicNames(run.topic_prefix)
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        directory = Path(tempfile.mkdtemp(prefix="halfbridge-steps-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        make_topics(
            run.bootstrap_servers,
            names,
            (run.real_topic,),
            pairs=run.pairs,
            partitions=run.partitions,
            producer_group=GROUP,
        )
        stack.callback(delete_groups, run.bootstrap_servers, [names.daemon_group])
        stack.callback(
            delete_topics, run.bootstrap_servers, lambda name: name.startswith(run.topic_prefix)
        )
        children = stack.enter_context(Children(directory, interrupts=interrupts))
        worker, reader, client = (
            _start(children, role, run) for role in ("worker", "reader", "client")
        )
        children.wait_until(
            lambda: client.process.poll() is not None,
            what="the client's last transaction",
            timeout_s=_START_S_MAX + 2 * (run.warmup_s + run.seconds),
        )
        sent = facts(client)[0]["sent"]
        children.wait_until(
            lambda: _seen(reader) >= sent,
            what="the delivery of all transactions",
            timeout_s=_START_S_MAX,
        )
        for child in (worker, reader):
            children.stop(child)
        return whole_ways(*(_noted(child) for child in (client, worker, reader)))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--rates", type=float, nargs="+", default=[200.0, 2000.0])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warmup", type=float, default=4.0)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--partitions", type=int, default=4)
    values = parser.parse_args(arguments)
    for rate in values.rates:
        prefix = f"steps-{uuid.uuid4().hex[:8]}."
        run = StepsRun(
            bootstrap_servers=values.bootstrap_servers,
            topic_prefix=prefix,
            real_topic=f"{prefix}orders",
            pairs=values.pairs,
            partitions=values.partitions,
            rate=rate,
            seconds=values.seconds,
            warmup_s=values.warmup,
        )
        sys.stdout.write(f"{rate:g} transactions/s: {table(measure(run))}\n")
        sys.stdout.flush()
    return 0


def _start(children: Children, role: str, run: StepsRun) -> Child:
    command = (sys.executable, "-m", "benchmarks.step_roles", role, run.to_json())
    environ = {key: said for key, said in os.environ.items() if not key.startswith("HALFBRIDGE_")}
    return children.start(role, command, environ=environ)


def _seen(reader: Child) -> int:
    return max((fact["seen"] for fact in facts(reader)), default=0)


def _noted(child: Child) -> Noted:
    noted: Noted = facts(child)[-1]
    return noted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
