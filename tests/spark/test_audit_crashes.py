"""The audit after the death of a client and of a worker at each step, and after a planted loss.

The installation is in memory: the shipped client and the shipped worker, which die at one request
or step each. The whole ledger of all these deaths is audited once.
"""

from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

from halfbridge.spark_jobs.audit.bounds import Bounds
from halfbridge.spark_jobs.audit.run import audited
from halfbridge.spark_jobs.audit.sift import DELIVERED, ROLLED_BACK
from halfbridge.testkit.memory import MemoryStack, Step
from halfbridge.testkit.memory.client import Client, Kind, Network
from tests.spark.marks import INTERPRETED
from tests.spark.tape import NAMES, ORDERS, Tape
from tests.unit.testkit.memory.shop import GROUP, TOPIC, Shop

pytestmark = INTERPRETED

T = TypeVar("T")

# The requests of a worker's kafka_txn, in their order.
_REQUESTS = (Kind.ADD_TO_TXN, Kind.PRODUCE, Kind.TXN_OFFSETS, Kind.END_TXN)
_DEATHS = [(kind, is_done) for kind in _REQUESTS for is_done in (False, True)]
_PLACED = len(Step) + 2 * len(_DEATHS)
# The client dies before its database commits at these steps, and the fence answers ROLLBACK.
_UNDONE = {Step.BEFORE_HALF, Step.AFTER_HALF_ACK, Step.BEFORE_LOCAL_COMMIT}


class Deadly(Network):
    """Kills a worker at its next request of a kind.

    Attributes:
        at: The kind, and whether the broker carries the request out; None: no worker dies.
    """

    at: tuple[Kind, bool] | None = None

    def request(
        self, client: Client, kind: Kind, place: Any, do: Callable[[], T], timeout_s: float
    ) -> T:
        """Carry the request out, or kill the process that sends it."""
        is_worker = client.process.name.startswith("worker")
        if not is_worker or self.at is None or kind is not self.at[0]:
            return super().request(client, kind, place, do, timeout_s)
        (_, is_done), self.at = self.at, None
        if is_done:
            do()
        self.scheduler.kill(client.process)
        self.scheduler.check(client.process)
        raise AssertionError("a dead process goes on")


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    """Return all topics of an installation whose client and worker died at each step."""
    with MemoryStack() as stack, closing(Shop(tmp_path / "shop.db")) as shop:
        stack.create_topic(TOPIC)
        for step in Step:
            _kill_the_client(stack, shop, step)
        network = Deadly(stack.machine.scheduler)
        stack.machine.network = network  # of the processes from now on
        _start_again(stack)
        for kind, is_done in _DEATHS:
            _kill_the_worker(stack, shop, network, kind, is_done=is_done)
        assert len(shop.placed()) == _PLACED - len(_UNDONE)
        return _recorded(stack)


def _kill_the_client(stack: MemoryStack, shop: Shop, step: Step) -> None:
    with stack.producer(GROUP, checker=shop.fence.check) as producer, stack.crash_at(step):
        shop.place(producer, f"client died {step.value}")
    stack.restart()
    stack.wait_until_decided()


def _kill_the_worker(
    stack: MemoryStack, shop: Shop, network: Deadly, kind: Kind, *, is_done: bool
) -> None:
    network.at = kind, is_done
    with stack.producer(GROUP, checker=shop.fence.check) as producer:
        for number in range(2):
            shop.place(producer, f"{number}: worker died at {kind.value}, {is_done=}")
        stack.advance(1.0)
        assert network.at is None, f"no worker has sent {kind.value}"
        _start_again(stack)
        stack.wait_until_decided()


def _start_again(stack: MemoryStack) -> None:
    stack.daemon.kill()
    stack.daemon.start()


def _recorded(stack: MemoryStack) -> Tape:
    """Return what read_committed readers see of the topics.

    Kafka's column timestampType is 1 less than the client library's number of the same kind.
    """
    tape = Tape()
    for topic in (NAMES.half, NAMES.op, NAMES.dead, ORDERS):
        for partition in stack.machine.broker.topic(topic).partitions:
            for record in partition.read(partition.start, partition.end)[0]:
                kind, ms = record.timestamp()
                time = datetime.fromtimestamp(ms / 1000, timezone.utc)
                row = (record.key(), record.value(), topic, partition.number, record.offset())
                tape.rows[topic, partition.number].append((*row, time, kind - 1, record.headers()))
    tape.clock_ms = stack.machine.broker.now_ms
    return tape


def test_every_death_leaves_a_ledger_without_findings(spark: SparkSession, tape: Tape) -> None:
    """What the database committed is delivered once, the rest is rolled back or was never sent."""
    with audited(tape.facts(spark), Bounds(tape.snapshot())) as audit:
        assert audit.findings.collect() == []
        delivered = _PLACED - len(_UNDONE)
        stored = _UNDONE - {Step.BEFORE_HALF}
        assert audit.states == {DELIVERED: delivered, ROLLED_BACK: len(stored)}


def test_a_record_that_is_taken_out_is_found(spark: SparkSession, tape: Tape) -> None:
    """One real record is taken out of the ledger: the audit reports one lost message."""
    lost = tape.rows[ORDERS, 0][3]
    tape.drop(ORDERS, 0, lost[4])
    with audited(tape.facts(spark), Bounds(tape.snapshot())) as audit:
        assert [row["kind"] for row in audit.findings.collect()] == ["lost"], lost
