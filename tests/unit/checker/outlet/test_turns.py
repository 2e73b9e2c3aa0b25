"""Which producers may go on after a kafka_txn that failed: none."""

from __future__ import annotations

from concurrent.futures import Future

from checker.config import CheckerConfig
from checker.failures import KafkaTxnFailedError
from checker.metrics import Metrics
from checker.outlet.kafka_io import Transactor
from checker.outlet.turns import Turns

NOWHERE = "127.0.0.1:1"


def _under_way(turns: Turns, config: CheckerConfig) -> Future[None]:
    """Have a commit be under way that another thread carries out."""
    turns._transactors = [Transactor(config, f"slot-{turn}") for turn in range(2)]
    turns._under_way = Future()
    return turns._under_way


def test_no_producer_is_kept_when_a_commit_failed_that_nobody_waits_for() -> None:
    """Its late requests would count for the next kafka_txn of the same epoch (KAFKA-17754)."""
    config = CheckerConfig(bootstrap_servers=NOWHERE)
    turns = Turns(config, "slot", Metrics())
    _under_way(turns, config).set_exception(KafkaTxnFailedError("timed out"))
    turns.settle()
    assert not turns.is_under_way
    assert turns._transactors == []
    turns.close()


def test_producers_are_kept_when_the_commit_stands() -> None:
    """A rebalance alone is no reason to replace them."""
    config = CheckerConfig(bootstrap_servers=NOWHERE)
    turns = Turns(config, "slot", Metrics())
    _under_way(turns, config).set_result(None)
    turns.settle()
    assert len(turns._transactors) == 2
    turns.close()
