"""Producers are replaced after a failed kafka_txn, and are freed completely.

A worker's garbage collector is almost off (`GC_THRESHOLDS`). A producer in a reference cycle would
keep four or five threads and as many connections for ever.
"""

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.blame import SendSize
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import Transactor
from halfbridge.checker.loop.producers import TransactionalProducers
from halfbridge.checker.metrics import Metrics
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import ConfigError
from tests.kit.waiting import until

COUNTS_THREADS = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
NOWHERE = "127.0.0.1:1"
TIMEOUT_S = 30


def _made(config: CheckerConfig) -> TransactionalProducers:
    return TransactionalProducers(config, "slot", Metrics(), ports=system_ports())


def _transactors(config: CheckerConfig) -> list[Transactor]:
    return [Transactor(config, f"slot-{turn}", ports=system_ports()) for turn in range(2)]


def _under_way(turns: TransactionalProducers, config: CheckerConfig) -> Future[None]:
    """Set a commit in progress in another thread; return its future."""
    turns._transactors = [
        Transactor(config, f"slot-{turn}", ports=system_ports()) for turn in range(2)
    ]
    turns._under_way = Future()
    return turns._under_way


def test_no_producer_is_kept_when_a_commit_failed_that_nobody_waits_for() -> None:
    """Late requests would count for the next kafka_txn of the same epoch (KAFKA-17754)."""
    config = CheckerConfig(bootstrap_servers=NOWHERE)
    turns = _made(config)
    _under_way(turns, config).set_exception(KafkaTxnFailedError("timed out"))
    assert not turns.settle()
    assert not turns.is_under_way
    assert turns._transactors == []
    turns.close()


def test_producers_are_kept_after_a_commit() -> None:
    """After a successful commit, settle returns True once and keeps the producers."""
    config = CheckerConfig(bootstrap_servers=NOWHERE)
    turns = _made(config)
    _under_way(turns, config).set_result(None)
    assert turns.settle()
    assert not turns.settle()
    assert len(turns._transactors) == 2
    turns.close()


def test_a_producer_that_sends_otherwise_is_replaced_before_its_next_batch() -> None:
    """A changed send size replaces the producer before its next batch."""
    turns = _made(CheckerConfig(bootstrap_servers=NOWHERE, kafka_txn_timeout_ms=1000))
    before = _transactors(turns._config)
    turns._transactors = [*before]
    with pytest.raises(KafkaTxnFailedError):  # its successor finds no broker
        turns.write([], SendSize.ONE_RECORD)
    with pytest.raises(RuntimeError, match="closed"):
        before[0].start()
    turns.close()


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """Collect garbage of other tests, then turn the collector off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _clients() -> set[str]:
    """Return the thread numbers of this process's Kafka clients: each has one main thread."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            if (thread / "comm").read_text() == "rdk:main\n":
                found.add(thread.name)
    return found


def _await_more(count: int, before: set[str]) -> None:
    """Wait until there are `count` more clients than `before`; clients of other tests may end.

    For a moment a client's new threads have the main thread's name. A leaked client would never
    end.
    """
    until(f"{count} more clients", lambda: len(_clients() - before) == count)


def _turns() -> TransactionalProducers:
    config = CheckerConfig(bootstrap_servers=NOWHERE, kafka_txn_timeout_ms=1000)
    return _made(config)


@COUNTS_THREADS
@pytest.mark.usefixtures("_no_collector")
def test_a_producer_that_found_no_broker() -> None:
    """A producer that found no broker is freed."""
    before, turns = _clients(), _turns()
    with pytest.raises(KafkaTxnFailedError):
        turns.start()
    turns.discard()
    _await_more(0, before)
    turns.close()


@COUNTS_THREADS
@pytest.mark.usefixtures("_no_collector")
def test_producers_that_are_discarded() -> None:
    """Discarded producers are freed."""
    before, turns = _clients(), _turns()
    turns._transactors = [
        Transactor(turns._config, f"slot-{turn}", ports=system_ports()) for turn in range(2)
    ]
    _await_more(2, before)
    turns.discard()
    _await_more(0, before)
    turns.close()


@COUNTS_THREADS
@pytest.mark.usefixtures("_no_collector")
def test_a_producer_whose_commit_failed_in_the_background() -> None:
    """A producer whose background commit failed is freed, although the error refers to it."""
    before, turns = _clients(), _turns()
    transactor = Transactor(turns._config, "slot-0", ports=system_ports())
    turns._transactors = [transactor]
    alone = {"bootstrap.servers": NOWHERE, "group.id": "nobody"}
    nobody = system_ports().kafka.member(alone)
    turns._under_way = turns._thread.submit(transactor.commit, [], nobody.membership())
    turns._committing = transactor
    del transactor
    with pytest.raises(KafkaTxnFailedError):
        turns.is_done(TIMEOUT_S)
    turns.discard()
    _await_more(1, before)  # nobody
    turns.close()


def test_a_configuration_that_was_right_is_tried_again() -> None:
    """If a valid configuration becomes invalid, start raises the retriable KafkaTxnFailedError."""
    kafka = {"test.mock.num.brokers": "1"}
    config = CheckerConfig(bootstrap_servers=NOWHERE, kafka=kafka, kafka_txn_timeout_ms=10_000)
    turns = _made(config)
    turns.start()
    turns.discard()
    turns._config = replace(config, kafka={**kafka, "no.such.property": "1"})
    with pytest.raises(KafkaTxnFailedError, match=r"no\.such"):
        turns.start()
    turns.close()


def test_a_configuration_that_was_never_right_is_reported() -> None:
    """A configuration that was never valid raises ConfigError."""
    kafka = {"security.protocol": "ssl", "ssl.ca.location": "/no/such/file"}
    turns = _made(CheckerConfig(bootstrap_servers=NOWHERE, kafka=kafka))
    with pytest.raises(ConfigError, match="ssl"):
        turns.start()
    turns.close()
