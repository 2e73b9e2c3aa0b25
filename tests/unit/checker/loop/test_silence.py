"""A Kafka client that no broker answers, while others are answered, is replaced and counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

import halfbridge.checker
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.asking import CheckSender
from halfbridge.checker.loop.clients import REPLACED_AFTER_S, Questions, SlotIds
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.checker.loop.intake import Input
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.kafka.ports import NewTopic, Ports
from halfbridge.testkit.memory.client import Kind, Network, NoAnswerError
from halfbridge.testkit.memory.machine import Machine
from halfbridge.testkit.memory.process import ProcessClient
from halfbridge.testkit.memory.scheduler import Scheduler

T = TypeVar("T")
CONFIG = CheckerConfig()
# The last time-out before the replacement may begin just before the limit.
LIMIT_S = REPLACED_AFTER_S + 30.0
# Longer than a request to a client waits for its acknowledgement.
SLICE_S = 8.0
UNHEARD_S = 1.0
TOPICS = {"orders", CONFIG.names.half, CONFIG.names.op}
# Where a worker makes Kafka clients, and what becomes of one that no broker answers.
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
    """Never answers the clients in `unheard`, all others at once."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.is_direct = False
        self.unheard: set[object] = set()

    def request(
        self, client: ProcessClient, kind: Kind, place: Any, do: Callable[[], T], timeout_s: float
    ) -> T:
        """Answer, or not."""
        if client not in self.unheard:
            return super().request(client, kind, place, do, timeout_s)
        self.scheduler.wait(client.process, None, min(timeout_s, UNHEARD_S))
        raise NoAnswerError


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
    """Whoever makes a further client says here what becomes of one that stays silent."""
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
    """It joined no group, or got no committed offsets, and nothing else notices that."""
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
    """A new one would have to join again, and is not answered either."""
    replaced: list[int] = []
    intake = Input(CONFIG, SlotIds("slot", "slot"), ports, partial(replaced.append, 1))
    kept = intake._member
    machine.network.is_down = True
    began = ports.clock.monotonic()
    while ports.clock.monotonic() - began < 3 * LIMIT_S:
        intake.fetch(UNHEARD_S)
    assert (intake._member, replaced) == (kept, [])


def test_an_admin_client_that_stays_silent_is_replaced(machine: Machine, ports: Ports) -> None:
    """A worker kept it for its life, and could do nothing until somebody restarted the worker."""
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
    """A new client is not answered either, and is dropped."""
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
    """Its requests timed out one after the other, and nobody was asked any more."""
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
