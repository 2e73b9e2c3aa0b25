"""Clocks that are wrong by days decide nothing: only the brokers' append times count (5.6)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from serde.headers import BORN_TIMESTAMP
from serde.records import DeadReason
from tests.integration.clock import clock_library
from tests.integration.installation import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.installation import Installation

pytestmark = pytest.mark.broker

ENDED_S = 30
FOUR_DAYS_MS = 4 * 24 * 3_600_000
PRODUCER = """
import sys
from bridge import Message, Resolution, TransactionProducer
servers, prefix, group, topic = sys.argv[1:]
with TransactionProducer(
    bootstrap_servers=servers, producer_group=group, topic_prefix=prefix, topics=[topic],
    checker=lambda view: Resolution.UNKNOWN,
) as producer:
    for _ in range(10):
        with producer.begin() as transaction:
            transaction.send(Message(topic, key=b"k", value=b"v"))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled shim that moves a process's wall clock."""
    return clock_library(tmp_path_factory.mktemp("clock"))


@pytest.fixture(params=[4, -4], ids=["ahead", "behind"])
def wrong(
    request: pytest.FixtureRequest, installation: Installation, library: Path
) -> Iterator[dict[str, str]]:
    """A worker process whose clock is four days off, and the environment that makes it so."""
    installation.make(groups=(GROUP,))
    shift_s = str(request.param * 24 * 3600)
    environment = {**os.environ, "LD_PRELOAD": str(library), "WRONG_CLOCK_S": shift_s}
    settings = {
        "bootstrap-servers": installation.servers,
        "topic-prefix": installation.names.prefix,
        "slot": "w-0",
        "transaction-timeout-ms": "500",
        "check-interval-ms": "300",
        "check-backoff-ms-max": "300",
        "check-count-max": "3",
    }
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "halfbridge", "checker", "run", *flags]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield environment
        finally:
            process.terminate()
            assert process.wait(ENDED_S) == 0


def test_a_wrong_clock_decides_nothing(installation: Installation, wrong: dict[str, str]) -> None:
    """Worker and producer live four days away: both deliver, and the group is asked in time."""
    orders = installation.topic("orders")
    undecided = installation.half(orders, value=b"undecided")
    subprocess.run(
        [
            *(sys.executable, "-c", PRODUCER, installation.servers),
            *(installation.names.prefix, GROUP, orders),
        ],
        env=wrong,
        check=True,
        timeout=60,
    )

    records = installation.tail(orders).until(10)
    asked = installation.checks(3)

    for record in records:
        born_ms = int(record.header(BORN_TIMESTAMP) or b"")
        assert abs(abs(born_ms - undecided.append_ms) - FOUR_DAYS_MS) < 3_600_000
        assert abs(record.timestamp_ms - undecided.append_ms) < 3_600_000
    assert {each.check.transaction_id for each in asked} == {undecided.transaction_id}
    assert {each.check.check_number for each in asked} == {1}
    assert installation.dead_now() == []

    for number in (1, 2, 3):
        while installation.checks(1)[-1].check.check_number != number:
            installation.checks(len(installation.checks(1)) + 1)
        installation.answer_unknown(undecided, number)
    (letter,) = installation.dead(1)
    assert (letter.value, letter.dead.reason) == (b"undecided", DeadReason.CHECK_TIMES)
    assert abs(letter.timestamp_ms - undecided.append_ms) < 3_600_000
