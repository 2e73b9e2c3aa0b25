"""The audit after the death of a client and of a worker at each step, and after a planted loss.

The installation is in memory: the shipped client and the shipped worker, which die at one request
or step each: in a message transaction, in a kafka_txn, in a check (C3 to C7 of DESIGN.md) and in a
rebuild (R1 to R3). The whole ledger of all these deaths is audited once.
"""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

from halfbridge import MessageView, Resolution
from halfbridge.serde.partitioner import partition_of
from halfbridge.spark_jobs.audit.bounds import Bounds
from halfbridge.spark_jobs.audit.run import audited
from halfbridge.spark_jobs.audit.sift import DELIVERED, DISCARDED, ROLLED_BACK
from halfbridge.testkit.memory import MemoryStack, Step
from halfbridge.testkit.memory.client import Client, Kind, Network
from tests.spark.marks import INTERPRETED
from tests.spark.tape import NAMES, ORDERS, PAIRS, Tape
from tests.unit.testkit.memory.shop import GROUP, KEY, TOPIC, Shop

pytestmark = INTERPRETED

T = TypeVar("T")

Place = str | tuple[str, int]
Checker = Callable[[MessageView], Resolution]


@dataclass(frozen=True)
class Death:
    """The request at which a process dies.

    Attributes:
        place: Topic or partition; empty: any.
        is_done: Whether the broker carries the request out.
        before: Number of equal requests that come first.
        who: What the name of the process begins with.
    """

    kind: Kind
    place: Place = ""
    is_done: bool = False
    before: int = 0
    who: str = "worker"

    def is_at(self, client: Client, kind: Kind, place: Any) -> bool:
        topic = place[0] if isinstance(place, tuple) else place
        is_there = self.place in {"", topic, place}
        return is_there and kind is self.kind and client.process.name.startswith(self.who)


def _both(kind: Kind, place: Place = "", **given: Any) -> list[Death]:
    """Return the deaths before and after the broker carries a request out."""
    return [Death(kind, place, is_done=is_done, **given) for is_done in (False, True)]


# All orders have one key, so all are in one pair.
_PAIR = partition_of(KEY, PAIRS)
_HALF, _OP = (NAMES.half, _PAIR), (NAMES.op, _PAIR)
_CHECK = NAMES.check(GROUP)
# The requests of a worker's kafka_txn, in their order.
_REQUESTS = (Kind.ADD_TO_TXN, Kind.PRODUCE, Kind.TXN_OFFSETS, Kind.END_TXN)
_KAFKA_TXN = [death for kind in _REQUESTS for death in _both(kind)]
_ASKING = _both(Kind.PRODUCE, _CHECK)  # C3
_ANSWERING = [  # C5
    *_both(Kind.PRODUCE, _OP, who=GROUP),
    Death(Kind.FETCH, _OP, is_done=True),  # the worker has read the answer, and not applied it
]
_ASKING_AGAIN = _both(Kind.PRODUCE, _CHECK, before=1)  # C6
_PUTTING_BACK = _both(Kind.PRODUCE, _HALF)  # C5, after an UNKNOWN
_DISCARDING = [*_both(Kind.PRODUCE, _OP), *_both(Kind.PRODUCE, NAMES.dead)]  # C7
_REBUILDING = [
    Death(Kind.FETCH_OFFSETS, is_done=True),  # R1
    Death(Kind.FETCH, _HALF, is_done=True, before=1),  # R2, one record a fetch
    Death(Kind.RIGHTS, TOPIC, is_done=True),  # R3: asked for when all is read, just before a plan
]
_HELD = 3  # undecided transactions that a rebuild reads
_CHECK_COUNT_MAX = 2
# Virtual, longer than all checks up to a DISCARD: after 6 s, and 30 s later.
_CHECKED_S = 90.0
_PLACED = (
    len(Step)
    + 2 * len(_KAFKA_TXN)
    + len([*_ASKING, *_ANSWERING, *_ASKING_AGAIN, *_PUTTING_BACK, *_DISCARDING])
    + 1  # the death in the checker (C4)
    + (_HELD + 1) * len(_REBUILDING)
)
# The client dies before its database commits at these steps, and the fence answers ROLLBACK.
_UNDONE = {Step.BEFORE_HALF, Step.AFTER_HALF_ACK, Step.BEFORE_LOCAL_COMMIT}


class Deadly(Network):
    """Kills a process at a request.

    Attributes:
        death: The next one; None: nobody dies.
    """

    death: Death | None = None
    _passed = 0

    def request(
        self, client: Client, kind: Kind, place: Any, do: Callable[[], T], timeout_s: float
    ) -> T:
        """Carry the request out, or kill the process that sends it."""
        death = self.death
        if death is None or not death.is_at(client, kind, place):
            return super().request(client, kind, place, do, timeout_s)
        is_last = self._passed == death.before
        answer: Any = None
        if death.is_done or not is_last:
            answer = super().request(client, kind, place, do, timeout_s)
        if kind is Kind.FETCH and not answer[0]:
            return answer  # no record, only the end of the log
        self._passed += 1
        if not is_last:
            return answer
        self.death, self._passed = None, 0
        self.scheduler.kill(client.process)
        self.scheduler.check(client.process)
        raise AssertionError("a dead process continues")

    def records_max(self, client: Client, place: tuple[str, int]) -> int:
        """Bring one record a fetch where somebody dies at a fetch."""
        is_narrow = self.death is not None and self.death.kind is Kind.FETCH
        return 1 if is_narrow else super().records_max(client, place)


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    """Return all topics of an installation whose client and worker died at each step."""
    with (
        MemoryStack(partitions=PAIRS, check_count_max=_CHECK_COUNT_MAX) as stack,
        closing(Shop(tmp_path / "shop.db")) as shop,
    ):
        stack.create_topic(TOPIC)
        for step in Step:
            _kill_the_client(stack, shop, step)
        network = Deadly(stack.machine.scheduler)
        stack.machine.network = network  # of the processes from now on
        _start_again(stack)
        for death in _KAFKA_TXN:
            _die_in_a_kafka_txn(stack, shop, network, death)
        for death in (*_ASKING, *_ANSWERING):
            _die_in_a_check(stack, shop, network, death, shop.fence.check)
        for death in _ASKING_AGAIN:
            _die_asking_nobody(stack, shop, network, death)
        for death in _PUTTING_BACK:
            _die_in_a_check(stack, shop, network, death, _unknown_at_first(shop))
        for death in _DISCARDING:
            _die_in_a_check(stack, shop, network, death, lambda _view: Resolution.UNKNOWN)
        _die_in_the_checker(stack, shop)
        for death in _REBUILDING:
            _die_in_a_rebuild(stack, shop, network, death)
        assert len(shop.placed()) == _PLACED - len(_UNDONE)
        return _recorded(stack)


def _kill_the_client(stack: MemoryStack, shop: Shop, step: Step) -> None:
    _leave_undecided(stack, shop, step, f"client died {step.value}")
    _decide(stack, shop.fence.check)


def _die_in_a_kafka_txn(stack: MemoryStack, shop: Shop, network: Deadly, death: Death) -> None:
    network.death = death
    with stack.producer(GROUP, checker=shop.fence.check) as producer:
        for number in range(2):
            shop.place(producer, f"{number}: {death}")
        stack.advance(1.0)
        assert network.death is None, f"nobody came to {death}"
        _start_again(stack)
        stack.wait_until_decided()


def _die_in_a_check(
    stack: MemoryStack, shop: Shop, network: Deadly, death: Death, check: Checker
) -> None:
    _leave_undecided(stack, shop, Step.AFTER_LOCAL_COMMIT, f"{death}")
    network.death = death
    with stack.producer(GROUP, checker=check):
        stack.advance(_CHECKED_S)
    assert network.death is None, f"nobody came to {death}"
    _start_again(stack)
    _decide(stack, check)


def _die_asking_nobody(stack: MemoryStack, shop: Shop, network: Deadly, death: Death) -> None:
    _leave_undecided(stack, shop, Step.AFTER_LOCAL_COMMIT, f"{death}")
    network.death = death
    stack.advance(_CHECKED_S)
    assert network.death is None, f"nobody came to {death}"
    _start_again(stack)
    _decide(stack, shop.fence.check)


def _die_in_the_checker(stack: MemoryStack, shop: Shop) -> None:
    """Kill a client while its checker runs (C4); another member answers."""

    def check(_view: MessageView) -> Resolution:
        stack.machine.scheduler.kill(member.process)
        raise AssertionError("a dead process continues")

    _leave_undecided(stack, shop, Step.AFTER_LOCAL_COMMIT, "client died in its checker")
    with stack.producer(GROUP, checker=check) as member:
        stack.advance(_CHECKED_S)
        assert member.process.is_dead, "nobody came to the checker"
    _decide(stack, shop.fence.check)


def _die_in_a_rebuild(stack: MemoryStack, shop: Shop, network: Deadly, death: Death) -> None:
    """Kill a worker that reads undecided transactions, and then a COMMIT that it has to apply."""
    for number in range(_HELD):
        what = f"{number}: {death}"
        _leave_undecided(stack, shop, Step.AFTER_LOCAL_COMMIT, what)
    stack.advance(1.0)
    stack.daemon.kill()
    with stack.producer(GROUP, checker=shop.fence.check) as producer:
        shop.place(producer, f"committed: {death}")
    delivered = len(stack.read_committed(TOPIC))
    network.death = death
    with suppress(TimeoutError):  # the dead worker is never ready
        stack.daemon.start()
    assert network.death is None, f"nobody came to {death}"
    assert len(stack.read_committed(TOPIC)) == delivered
    _start_again(stack)
    _decide(stack, shop.fence.check)


def _leave_undecided(stack: MemoryStack, shop: Shop, step: Step, what: str) -> None:
    """Have a client die, and no other member of its group answer."""
    with stack.producer(GROUP, checker=shop.fence.check) as producer, stack.crash_at(step):
        shop.place(producer, what)


def _decide(stack: MemoryStack, check: Checker) -> None:
    with stack.producer(GROUP, checker=check):
        stack.wait_until_decided()


def _unknown_at_first(shop: Shop) -> Checker:
    """Return a checker that answers UNKNOWN, and from the second time on what the fence says."""
    seen: list[MessageView] = []

    def check(view: MessageView) -> Resolution:
        seen.append(view)
        return Resolution.UNKNOWN if len(seen) == 1 else shop.fence.check(view)

    return check


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
    """What the database committed is delivered once, unless its checker never answers so.

    The rest is rolled back, or was never sent.
    """
    with audited(tape.facts(spark), Bounds(tape.snapshot())) as audit:
        assert audit.findings.collect() == []
        discarded = len(_DISCARDING)
        delivered = _PLACED - len(_UNDONE) - discarded
        rolled_back = len(_UNDONE - {Step.BEFORE_HALF})
        states = {DELIVERED: delivered, ROLLED_BACK: rolled_back, DISCARDED: discarded}
        assert audit.states == states


def test_a_record_that_is_taken_out_is_found(spark: SparkSession, tape: Tape) -> None:
    """One real record is taken out of the ledger: the audit reports one lost message."""
    lost = tape.rows[ORDERS, 0][3]
    tape.drop(ORDERS, 0, lost[4])
    with audited(tape.facts(spark), Bounds(tape.snapshot())) as audit:
        assert [row["kind"] for row in audit.findings.collect()] == ["lost"], lost
