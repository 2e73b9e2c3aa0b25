"""What clients in memory make of requests that get lost, come late, or are not answered."""

import gc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import NewTopic
from halfbridge.testkit.memory.client import Client, Kind, Network, RequestTimeoutError
from halfbridge.testkit.memory.machine import Machine
from halfbridge.testkit.memory.process import Process
from halfbridge.testkit.memory.scheduler import Scheduler

T = TypeVar("T")

_PLACE = ("topic", 0)


class Faulty(Network):
    """Applies the faults that a test sets to the next requests of a kind.

    Attributes:
        fates: Kind -> what becomes of its next requests: "lost", "late", "unanswered" or "slow".
        late: What has not come yet.
        silent: Processes that no broker hears.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.is_direct = False
        self.outcomes: dict[Kind, list[str]] = {}
        self.late: list[Callable[[], object]] = []
        self.silent: set[str] = set()

    def request(
        self, client: Client, kind: Kind, place: Any, do: Callable[[], T], timeout_s: float
    ) -> T:
        outcomes = self.outcomes.get(kind)
        outcome = outcomes.pop(0) if outcomes else ""
        if client.process.name in self.silent:
            outcome = "lost"
        if outcome == "slow":
            self.scheduler.wait(client.process, None, 1.0)
            outcome = ""
        if not outcome:
            return do()
        if outcome == "late":
            self.late.append(do)
        elif outcome == "unanswered":
            do()
        self.scheduler.wait(client.process, None, timeout_s)
        raise RequestTimeoutError

    def reaches(self, process: Process) -> bool:
        return process.name not in self.silent


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Yield brokers behind a faulty network, and one topic."""
    with Machine(network=Faulty) as made:
        made.broker.create_topic(NewTopic("topic", 1, 1, {}))
        yield made


def _network(machine: Machine) -> Faulty:
    network = machine.network
    assert isinstance(network, Faulty)
    return network


def _kafka(machine: Machine, name: str = "p") -> Any:
    return machine.ports(machine.process(name)).kafka


def _written(writer: Any, count: int = 1, timeout_s: float = 60.0) -> list[Any]:
    reported: list[Any] = []
    for _ in range(count):
        writer.produce(
            "topic", b"v", None, 0, lambda error, record: reported.append((error, record))
        )
    writer.flush(timeout_s)
    return reported


def _end(machine: Machine) -> int:
    return machine.broker.partition(_PLACE).end


def _transactional(machine: Machine, **properties: Any) -> Any:
    writer = _kafka(machine).transactional_writer({"transactional.id": "a", **properties})
    writer.init(5.0)
    return writer


@pytest.mark.parametrize("outcome", ["lost", "unanswered"])
def test_an_idempotent_writer_repeats_and_stores_once(machine: Machine, outcome: str) -> None:
    """Whether the first request came or not, each record is stored once, and is acknowledged."""
    writer = _kafka(machine).writer({"enable.idempotence": True, "request.timeout.ms": 1_000})
    _network(machine).outcomes[Kind.PRODUCE] = [outcome]
    reported = _written(writer, 3)
    assert [(error, record.offset()) for error, record in reported] == [(None, n) for n in range(3)]
    assert _end(machine) == 3


def test_another_writer_stores_twice(machine: Machine) -> None:
    """Without idempotence a repetition is another record."""
    writer = _kafka(machine).writer({"request.timeout.ms": 1_000})
    _network(machine).outcomes[Kind.PRODUCE] = ["unanswered"]
    _written(writer)
    assert _end(machine) == 2


def test_a_record_times_out(machine: Machine) -> None:
    """MSG_TIMED_OUT, whatever became of the record; later records are stored."""
    writer = _kafka(machine).writer({"enable.idempotence": True, "message.timeout.ms": 1_000})
    _network(machine).outcomes[Kind.PRODUCE] = ["late"]
    ((error, record),) = _written(writer)
    assert (error.code, record.offset()) == (Code.MSG_TIMED_OUT, None)
    ((error, record),) = _written(writer)
    assert (error, record.offset()) == (None, 0)


def test_a_late_record_of_an_old_epoch_is_refused(machine: Machine) -> None:
    """What timed out may still come, until the writer's next record has."""
    writer = _kafka(machine).writer({"enable.idempotence": True, "message.timeout.ms": 1_000})
    network = _network(machine)
    network.outcomes[Kind.PRODUCE] = ["late", "late"]
    _written(writer)
    network.late.pop()()
    assert _end(machine) == 1
    _written(writer)
    _written(writer)
    with pytest.raises(KafkaFailure) as refused:
        network.late.pop()()
    assert refused.value.code == Code.INVALID_PRODUCER_EPOCH
    assert _end(machine) == 2


@pytest.mark.parametrize("outcome", ["lost", "unanswered", "late"])
def test_a_commit_of_unknown_outcome_is_repeated(machine: Machine, outcome: str) -> None:
    """TIMED_OUT is retriable; only `commit` may follow, and it finds out."""
    writer = _transactional(machine)
    writer.begin()
    _written(writer)
    _network(machine).outcomes[Kind.END_TXN] = [outcome]
    with pytest.raises(KafkaFailure) as unknown:
        writer.commit(1.0)
    assert (unknown.value.code, unknown.value.is_retriable) == (Code.TIMED_OUT, True)
    for call in (writer.begin, lambda: writer.abort(1.0)):
        with pytest.raises(KafkaFailure, match="_CONFLICT"):
            call()
    writer.commit(1.0)
    assert machine.broker.partition(_PLACE).lso == _end(machine) == 2


def test_a_late_commit_ends_the_next_kafka_txn(machine: Machine) -> None:
    """A request of the same epoch counts for whatever is open then (KAFKA-17754)."""
    writer = _transactional(machine)
    writer.begin()
    _written(writer)
    network = _network(machine)
    network.outcomes[Kind.END_TXN] = ["late"]
    with pytest.raises(KafkaFailure):
        writer.commit(1.0)
    writer.commit(1.0)
    writer.begin()
    _written(writer)
    network.late.pop()()
    assert machine.broker.partition(_PLACE).lso == _end(machine) == 4


def test_offsets_are_not_sent_after_a_refusal_between_their_requests(machine: Machine) -> None:
    """STATE without a flag: the reason is in the acknowledgement of the record only."""
    writer = _transactional(machine)
    broker = machine.broker
    member = _kafka(machine, "m").member({"group.id": "g"})
    member.join_and_read(["topic"])
    member.poll(1.0)
    broker.create_topic(NewTopic("small", 1, 1, {"max.message.bytes": "100"}))
    refused: list[Any] = []
    writer.begin()
    writer.produce("small", bytes(200), None, 0, lambda error, _: refused.append(error))
    _network(machine).outcomes[Kind.ADD_TO_TXN] = ["slow"]
    with pytest.raises(KafkaFailure) as failure:
        writer.send_offsets([("topic", 0, 1, "")], member.membership(), 5.0)
    assert (failure.value.code, failure.value.requires_abort) == (Code.STATE, False)
    writer.poll(0.0)
    assert [each.code for each in refused] == [Code.MSG_SIZE_TOO_LARGE]
    writer.abort(5.0)
    assert broker.group("g").committed == {}


def test_late_markers_hold_up_the_next_kafka_txn(machine: Machine) -> None:
    """The client asks again while CONCURRENT_TRANSACTIONS is answered; readers wait meanwhile."""
    coordinator = machine.broker.coordinator
    coordinator.marks_at_once = False
    writer = _transactional(machine, **{"retry.backoff.ms": 10})
    writer.begin()
    _written(writer)
    writer.commit(5.0)
    assert machine.broker.partition(_PLACE).lso == 0
    assert coordinator.identities["a"].marking
    writer.begin()
    assert _written(writer, timeout_s=1.0) == []
    coordinator.mark(0)
    assert writer.flush(1.0) == 0
    assert machine.broker.partition(_PLACE).lso == 2


def test_connections_that_are_lost_are_reported_in_poll(machine: Machine) -> None:
    """`error_cb` and `on_lost` are called by the next poll, not by the network."""
    reported: list[Any] = []
    writer = _kafka(machine).transactional_writer(
        {"transactional.id": "a", "error_cb": reported.append},
        on_lost=lambda: reported.append("lost"),
    )
    writer.connection_lost()
    assert reported == []
    writer.poll(0.0)
    assert [reported[0].code, reported[1]] == [Code.TRANSPORT, "lost"]


def test_a_member_that_is_not_heard_is_out(machine: Machine) -> None:
    """Its partitions go to the others after its session; when it is back it joins again."""
    assigned: dict[str, list[int]] = {"one": [], "two": []}
    machine.broker.grow_topic("topic", 2)

    def joined(name: str) -> Any:
        properties = {"group.id": "g", "group.instance.id": name, "session.timeout.ms": 6_000}
        member = _kafka(machine, name).member({**properties, "enable.auto.commit": False})

        def on_assigned(reader: Any, places: frozenset[Any]) -> None:
            assigned[name].append(len(places))
            reader.read_from({})

        member.join(["topic"], on_assigned, lambda _: assigned[name].append(-1))
        return member

    members = [joined("one"), joined("two")]

    def go_on(seconds: int) -> None:
        for _ in range(10 * seconds):
            for member in members:
                member.poll(0.1)

    go_on(1)
    assert (assigned["one"][-1], assigned["two"][-1]) == (1, 1)
    _network(machine).silent.add("one")
    go_on(5)
    assert (assigned["one"][-1], assigned["two"][-1]) == (1, 2)
    _network(machine).silent.clear()
    go_on(1)
    assert (assigned["one"][-3:], assigned["two"][-2:]) == ([1, -1, 1], [-1, 1])


def _member(machine: Machine, name: str, **properties: Any) -> Any:
    common = {"group.id": "g", "session.timeout.ms": 6_000, "enable.auto.commit": False}
    member = _kafka(machine, name).member({**common, **properties})
    member.join_and_read(["topic"])
    member.poll(0.1)
    return member


def test_a_static_member_may_fence_itself(machine: Machine) -> None:
    """When the answer to its JoinGroup is lost, the group knows it by an id that it never learns.

    (librdkafka #3437.)
    """
    member = _member(machine, "one", **{"group.instance.id": "one"})
    network = _network(machine)
    network.silent.add("one")
    machine.run(machine.process("other"), 7.0)
    network.silent.clear()
    network.outcomes[Kind.JOIN] = ["unanswered"]
    reported = []
    for _ in range(100):
        record = member.poll(1.0)
        if record is not None and record.error().code == Code.FATAL:
            reported.append(record.error().text)
    assert len(reported) == 1
    assert "fenced" in reported[0]


def test_a_member_closes_though_nobody_answers(machine: Machine) -> None:
    """The group notices it when the member's session is over."""
    member = _member(machine, "one")
    _network(machine).outcomes[Kind.LEAVE] = ["lost"]
    member.close()
    assert len(machine.broker.group("g").slots) == 1
    machine.run(machine.process("other"), 7.0)
    assert not machine.broker.group("g").slots


def test_clients_that_are_dropped_are_gone(machine: Machine) -> None:
    """A process has no more of a writer or an admin that nobody refers to."""
    process = machine.process("p")
    kafka = machine.ports(process).kafka
    writer, admin, reader = kafka.writer({}), kafka.admin({}), kafka.reader({"group.id": "g"})
    assert process.clients == [writer, admin, reader]
    reader.close()
    del admin
    gc.collect()
    assert process.clients == [writer]


def test_a_network_with_switching_lets_others_run_between_requests() -> None:
    """A driver may step others, or kill the writer, between any two requests of a kafka_txn."""
    ends: list[tuple[int, int]] = []
    for kill_after in range(12):
        with Machine(network=lambda scheduler: Network(scheduler, yields=True)) as machine:
            machine.broker.create_topic(NewTopic("topic", 1, 1, {}))
            process = machine.process("p")

            def work(machine: Machine = machine, process: Process = process) -> None:
                writer = machine.ports(process).kafka.transactional_writer(
                    {"transactional.id": "a"}
                )
                writer.init(5.0)
                writer.begin()
                _written(writer)
                writer.commit(5.0)

            machine.scheduler.start(process, work, "work")
            for _ in range(kill_after):
                for task in machine.scheduler.runnable()[:1]:
                    machine.scheduler.step(task)
            machine.scheduler.kill(process)
            partition = machine.broker.partition(_PLACE)
            ends.append((partition.lso, partition.end))
    assert ends == sorted(ends)
    assert set(ends) == {(0, 0), (0, 1), (2, 2)}
