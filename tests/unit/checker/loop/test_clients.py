"""Properties of a worker's Kafka clients, questions to brokers, and client replacement."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

import halfbridge.checker
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.asking import CheckSender
from halfbridge.checker.loop.clients import (
    REPLACED_AFTER_S,
    EndAnswer,
    Questions,
    SlotIds,
    client_config,
    member_config,
)
from halfbridge.checker.loop.failures import InputLostError, KafkaTxnFailedError
from halfbridge.checker.loop.intake import Input
from halfbridge.checker.loop.outlet import Transactor
from halfbridge.checker.loop.pair import BodyReader
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.checker.process.slots import slot_ids
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import Code, ConfigError, KafkaFailure
from halfbridge.kafka.ports import Edge, NewTopic, Ports, SeenTopic
from halfbridge.testkit.memory.client import Client, Kind, Network, RequestTimeoutError
from halfbridge.testkit.memory.machine import Machine
from halfbridge.testkit.memory.scheduler import Scheduler
from tests.fake_ports import Clock, fake_ports

PORTS = system_ports()


def test_the_users_own_properties_win_over_our_defaults() -> None:
    """The user's properties override the defaults, but not the brokers or topic creation."""
    reported = {"reconnect.backoff.ms": "1000", "security.protocol": "PLAINTEXT"}

    config = client_config(CheckerConfig(bootstrap_servers="one:9092", kafka=reported))

    assert config.items() >= reported.items()
    assert config["bootstrap.servers"] == "one:9092"
    assert config["allow.auto.create.topics"] is False


def test_how_records_are_fetched_is_the_users_to_say() -> None:
    """The user's fetch properties apply to the group consumer."""
    reported = {"fetch.wait.max.ms": "3", "fetch.min.bytes": "1000000"}

    config = CheckerConfig(bootstrap_servers="one:9092", kafka=reported)
    properties = member_config(config, "w-0")

    assert properties["fetch.wait.max.ms"] == "3"
    assert properties["fetch.min.bytes"] == "1000000"


def test_what_the_group_consumer_may_do_hurts_no_other_client() -> None:
    """All clients accept a max.poll.interval.ms below the default session time-out."""
    given = {"max.poll.interval.ms": "12000"}
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka=given)

    BodyReader(config, PORTS)
    Input(config, slot_ids("w-0", topic_prefix=""), PORTS).close(leave=False)
    Questions(config, PORTS)


def test_a_property_that_no_client_knows_is_a_configuration_error() -> None:
    """Each client raises ConfigError for an unknown property."""
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka={"no.such.property": "1"})
    ids = slot_ids("w-0", topic_prefix="")

    for client in (
        lambda: BodyReader(config, PORTS),
        lambda: Input(config, ids, PORTS),
        lambda: Questions(config, PORTS),
        lambda: CheckSender(config, PORTS),
        lambda: Transactor(config, "id", ports=PORTS),
        lambda: Cluster("127.0.0.1:1", kafka=config.kafka),
    ):
        with pytest.raises(ConfigError, match=r"no\.such\.property"):
            client()


@pytest.mark.parametrize("name", ["stats_cb", "throttle_cb", "oauth_cb", "default.topic.config"])
def test_a_property_that_takes_no_text_is_a_configuration_error(name: str) -> None:
    """A property that needs a function or mapping is a ConfigError."""
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka={name: "text"})

    with pytest.raises(ConfigError, match="kafka"):
        Input(config, slot_ids("w-0", topic_prefix=""), PORTS)


def test_a_record_larger_than_the_producers_queue_fails_in_time() -> None:
    """A record that never fits the queue fails the kafka_txn with the property's name."""
    own = {"test.mock.num.brokers": "1", "queue.buffering.max.kbytes": "1"}
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka=own, kafka_txn_timeout_ms=1000)
    transactor = Transactor(config, "id", ports=PORTS)
    transactor.start()
    record = Outgoing("orders", 0, None, b"x" * 2000, [], 0)

    with pytest.raises(KafkaTxnFailedError, match=r"queue\.buffering\.max\.kbytes"):
        transactor.write([record])
    transactor.close()


def test_the_producers_queue_may_be_made_smaller() -> None:
    """The operator's queue.buffering.max.messages is used."""
    own = {"test.mock.num.brokers": "1", "queue.buffering.max.messages": "3"}
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka=own)
    transactor = Transactor(config, "id", ports=PORTS)
    transactor.start()
    transactor._writer.begin()

    def produce() -> None:
        transactor._writer.produce("orders", b"x", None, 0, lambda *_: None)

    for _ in range(3):
        produce()
    with pytest.raises(BufferError):
        produce()
    transactor.close()


# --- questions to brokers: asked without waiting; the results of silence and refusals ------

SILENCE = KafkaFailure(Code.TIMED_OUT)
WAIT_S = 3.0


class _Answer:
    """An answer that is there, or that times out when it is waited for."""

    def __init__(self, clock: Clock, said: Any) -> None:
        self.clock = clock
        self.said = said

    def done(self) -> bool:
        return self.said is not None

    def result(self, timeout_s: float | None = None) -> Any:
        if self.said is None:
            self.clock.now += timeout_s or 0.0
            raise SILENCE
        if isinstance(self.said, KafkaFailure):
            raise self.said
        return self.said


class _Admin:
    """Brokers with the test's answer for each topic or edge; None: no answer yet."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.says: dict[Any, Any] = {}
        self.asked: list[Any] = []

    def admin(self, _properties: Mapping[str, Any]) -> _Admin:
        return self

    def poll(self, _wait_s: float) -> None:
        pass

    def topics(self, _timeout_s: float) -> dict[str, SeenTopic]:
        if self.says.get("topics") is None:
            raise SILENCE
        return dict(self.says["topics"])

    def ask_ends(
        self, places: Iterable[tuple[str, int]], edge: Edge, _timeout_s: float
    ) -> dict[tuple[str, int], _Answer]:
        self.asked.append(edge)
        return {place: _Answer(self.clock, self.says.get((edge, place[1]))) for place in places}

    def ask_settings(self, topics: Iterable[str], _timeout_s: float) -> dict[str, _Answer]:
        return {topic: _Answer(self.clock, self.says.get(topic)) for topic in topics}

    ask_rights = ask_settings


@pytest.fixture
def admin() -> _Admin:
    return _Admin()


@pytest.fixture
def questions(admin: _Admin) -> Questions:
    return Questions(CheckerConfig(), fake_ports(admin, admin.clock))


def test_an_end_is_asked_for_once_at_a_time(admin: _Admin, questions: Questions) -> None:
    """A second question about an open end is not sent; the answer has the first token."""
    admin.says[Edge.END, 1] = SILENCE
    questions.ask_end("op", 0, token=1)
    questions.ask_end("op", 0, token=2)
    questions.ask_end("op", 1, token=3)
    assert len(admin.asked) == 2
    assert list(questions.answers()) == []
    for _, answer in questions._open.values():
        answer.said = 7
    assert list(questions.answers()) == [EndAnswer("op", 0, 1, 7)]
    questions.ask_end("op", 0, token=4)
    assert len(admin.asked) == 3


def test_a_range_needs_both_ends(admin: _Admin, questions: Questions) -> None:
    """A partition with only one end answered gives InputLostError."""
    admin.says |= {(Edge.START, 0): 2, (Edge.END, 0): 9, (Edge.START, 1): 0}
    found = questions.ask_ranges([("op", 0), ("op", 1)]).answers()
    assert found["op", 0] == (2, 9)
    assert isinstance(found["op", 1], InputLostError)


def test_of_stable_ends_those_that_are_reported_count(admin: _Admin, questions: Questions) -> None:
    """Only answered stable ends are returned."""
    admin.says |= {(Edge.STABLE_END, 0): 9, (Edge.STABLE_END, 1): SILENCE}
    asked = questions.ask_stable_ends([("op", 0), ("op", 1)])
    assert asked.is_over
    assert asked.answers() == {("op", 0): 9}


def test_settings_are_waited_for_once(admin: _Admin, questions: Questions) -> None:
    """The wait for several topics' settings takes WAIT_S in total, not per topic."""
    topics = ["a", "b", "c"]
    began = admin.clock.now
    asked = questions.ask_settings(topics)
    assert not asked.is_over
    assert all(said.is_silent for said in asked.answers(WAIT_S).values())
    assert admin.clock.now - began == WAIT_S


@pytest.mark.parametrize(
    ("code", "is_missing", "is_silent"),
    [
        (Code.UNKNOWN_TOPIC_OR_PART, True, False),
        (Code.TOPIC_EXCEPTION, True, False),
        (Code.TOPIC_AUTHORIZATION_FAILED, False, False),
        (Code.TRANSPORT, False, True),
    ],
)
def test_why_settings_are_not_known(
    admin: _Admin, questions: Questions, code: Code, *, is_missing: bool, is_silent: bool
) -> None:
    """The error code tells whether the topic is missing, not authorized, or brokers are silent."""
    admin.says["a"] = KafkaFailure(code)
    said = questions.ask_settings(["a"]).answers()["a"]
    assert (said.settings, said.is_missing, said.is_silent) == (None, is_missing, is_silent)


def test_rights_are_reported_or_not(admin: _Admin, questions: Questions) -> None:
    """A right is true, false, or None for other errors; without an answer it is a failure."""
    admin.says |= {
        "mine": True,
        "theirs": KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED),
        "gone": KafkaFailure(Code.UNKNOWN_TOPIC_OR_PART),
    }
    reported = {"mine": True, "theirs": False, "gone": None}
    assert questions.may_write(list(reported)) == reported
    with pytest.raises(InputLostError, match="rights"):
        questions.may_write(["silent"])


def test_topics_are_reported_or_the_input_is_lost(admin: _Admin, questions: Questions) -> None:
    """If topics cannot be read, the error has the brokers' address."""
    with pytest.raises(InputLostError, match="localhost:9092"):
        questions.topics()
    admin.says["topics"] = {"orders": SeenTopic(3, 1)}
    assert questions.topics() == {"orders": SeenTopic(3, 1)}


# --- a Kafka client without answers is replaced and counted, if others are answered --------

T = TypeVar("T")
CONFIG = CheckerConfig()

# The last time-out before the replacement may begin just before the limit.
LIMIT_S = REPLACED_AFTER_S + 30.0

# Longer than a request to a client waits for its acknowledgement.
SLICE_S = 8.0
UNHEARD_S = 1.0
TOPICS = {"orders", CONFIG.names.half, CONFIG.names.op}

# Classes that create a worker's Kafka clients, and what is done with a client without answers.
KEPT = "replaced after REPLACED_AFTER_S"
FAILED = "replaced after each failure"
ONCE = "lives as long as one question"
CLIENTS = {
    "_Writer": FAILED,
    "BodyReader": FAILED,
    "CheckSender": KEPT,
    "FirstReads": ONCE,
    "Input": KEPT,
    "PlainOutlet": FAILED,
    "Questions": KEPT,
    "SettingsTopic": ONCE,
    "Transactor": FAILED,
}
MAKES_A_CLIENT = re.compile(r"kafka\.(reader|member|writer|transactional_writer|admin)\(")


class Deaf(Network):
    """Never answers clients in `unheard`, and all others at once."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.is_direct = False
        self.unheard: set[object] = set()

    def request(
        self, client: Client, kind: Kind, place: Any, do: Callable[[], T], timeout_s: float
    ) -> T:
        if client not in self.unheard:
            return super().request(client, kind, place, do, timeout_s)
        self.scheduler.wait(client.process, None, min(timeout_s, UNHEARD_S))
        raise RequestTimeoutError


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Yield brokers with one topic."""
    with Machine(network=Deaf) as made:
        for topic in TOPICS:
            made.broker.create_topic(NewTopic(topic, 1, 1, {}))
        yield made


@pytest.fixture
def ports(machine: Machine) -> Ports:
    """Return the ports of a worker's process."""
    return machine.ports(machine.process("worker"))


def _unheard(machine: Machine) -> set[object]:
    network = machine.network
    assert isinstance(network, Deaf)
    return network.unheard


def test_every_client_of_a_worker_has_a_rule() -> None:
    """Every class of the worker that creates a Kafka client has an entry in CLIENTS."""
    root = Path(halfbridge.checker.__file__).parent
    found = {
        part.partition("\n")[0].strip(":").partition("(")[0]
        for room in ("loop", "process")
        for path in (root / room).glob("*.py")
        for part in path.read_text().split("\nclass ")
        if MAKES_A_CLIENT.search(part)
    }
    assert found == set(CLIENTS)


def test_a_consumer_that_stays_silent_is_replaced(machine: Machine, ports: Ports) -> None:
    """A consumer without answers is replaced after REPLACED_AFTER_S and joins again."""
    replaced: list[int] = []
    intake = Input(CONFIG, SlotIds("slot", "slot"), ports, partial(replaced.append, 1))
    for count in (1, 2):
        _unheard(machine).add(intake._member)
        began = ports.clock.monotonic()
        while len(replaced) < count:
            with suppress(InputLostError):
                intake.fetch(UNHEARD_S)
                if intake.is_member:
                    intake.committed([(CONFIG.names.half, 0)])
            assert ports.clock.monotonic() - began < 3 * LIMIT_S
        assert ports.clock.monotonic() - began >= REPLACED_AFTER_S
        while not intake.is_member:
            intake.fetch(UNHEARD_S)
            assert ports.clock.monotonic() - began < 4 * LIMIT_S


def test_a_consumer_is_kept_while_nobody_is_answered(machine: Machine, ports: Ports) -> None:
    """While no client is answered, the consumer is not replaced."""
    replaced: list[int] = []
    intake = Input(CONFIG, SlotIds("slot", "slot"), ports, partial(replaced.append, 1))
    kept = intake._member
    machine.network.is_down = True
    began = ports.clock.monotonic()
    while ports.clock.monotonic() - began < 3 * LIMIT_S:
        intake.fetch(UNHEARD_S)
    assert (intake._member, replaced) == (kept, [])


def test_an_admin_client_that_stays_silent_is_replaced(machine: Machine, ports: Ports) -> None:
    """An admin client without answers is replaced after REPLACED_AFTER_S."""
    replaced: list[int] = []
    questions = Questions(CONFIG, ports, partial(replaced.append, 1))
    assert set(questions.topics()) == TOPICS
    _unheard(machine).add(questions._admin)
    began = ports.clock.monotonic()

    while not replaced:
        with suppress(InputLostError):
            assert set(questions.topics()) == TOPICS
        assert ports.clock.monotonic() - began < LIMIT_S
    assert ports.clock.monotonic() - began >= REPLACED_AFTER_S
    assert set(questions.topics()) == TOPICS
    assert replaced == [1]


def test_an_admin_client_is_kept_while_nobody_is_answered(machine: Machine, ports: Ports) -> None:
    """While no client is answered, the admin client is not replaced."""
    replaced: list[int] = []
    questions = Questions(CONFIG, ports, partial(replaced.append, 1))
    kept = questions._admin
    machine.network.is_down = True
    began = ports.clock.monotonic()
    while ports.clock.monotonic() - began < 3 * LIMIT_S:
        with pytest.raises(InputLostError):
            questions.topics()
        machine.scheduler.wait(machine.process("waits"), None, SLICE_S)
    assert questions._admin is kept
    assert not replaced
    machine.network.is_down = False
    assert set(questions.topics()) == TOPICS


def test_a_producer_of_checks_that_stays_silent_is_replaced(machine: Machine, ports: Ports) -> None:
    """A producer without answers is replaced after REPLACED_AFTER_S, and sends again."""
    replaced: list[int] = []
    sender = CheckSender(CONFIG, ports, partial(replaced.append, 1))
    _unheard(machine).add(sender._writer)
    record = Outgoing("orders", 0, None, b"request", headers=[], timestamp_ms=0)
    began = ports.clock.monotonic()

    while not replaced:
        sender.send(record, 0)
        machine.scheduler.wait(machine.process("waits"), None, SLICE_S)
        sender.serve()
        assert ports.clock.monotonic() - began < LIMIT_S
    assert ports.clock.monotonic() - began >= REPLACED_AFTER_S
    while not machine.broker.partition(("orders", 0)).slots:
        machine.scheduler.wait(machine.process("waits"), None, SLICE_S)
        assert ports.clock.monotonic() - began < 2 * LIMIT_S
    assert replaced == [1]
