"""Clocks that are wrong by days decide nothing: only the brokers' append times count (5.6)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbridge.serde.headers import BORN_TIMESTAMP
from halfbridge.serde.records import DeadReason
from halfbridge.testkit.broker import EmbeddedBroker
from tests.integration.brokers import started
from tests.integration.clock import MovingClock, clock_library
from tests.integration.installation import GROUP, Installation

pytestmark = pytest.mark.broker

ENDED_S = 30
HOUR_MS = 3_600_000
FOUR_DAYS_MS = 4 * 24 * HOUR_MS
PRODUCER = """
import sys
from halfbridge.bridge import Message, TransactionProducer
servers, prefix, group, topic = sys.argv[1:]
with TransactionProducer(
    bootstrap_servers=servers, producer_group=group, topic_prefix=prefix, topics=[topic],
    checker=lambda view: None,  # asked while it lives, it says nothing that counts
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

    for number in (1, 2, 3):
        while installation.checks(1)[-1].check.check_number != number:
            installation.checks(len(installation.checks(1)) + 1)
        installation.answer_unknown(undecided, number)
    installation.dead(1)
    (letter,) = installation.dead_letters()
    assert (letter.value, letter.dead.reason) == (b"undecided", DeadReason.CHECK_TIMES)
    assert abs(letter.timestamp_ms - undecided.append_ms) < 3_600_000


# --- a broker's clock, which all times are taken from ----------------------------------------


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> MovingClock:
    return MovingClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def jumping_servers(clock: MovingClock) -> Iterator[str]:
    """The broker that lives by it."""
    with clock.lived_by():
        broker = EmbeddedBroker(heap_mib=512)  # reads the environment of its JVM
        with started(broker, "no broker of its own"):
            yield broker.bootstrap_servers


@pytest.fixture
def jumping(jumping_servers: str, topic_prefix: str) -> Iterator[Installation]:
    made = Installation(jumping_servers, topic_prefix)
    try:
        yield made
    finally:
        # Topics go with the broker, soon. Deleting them may take as long as its clock went back.
        made.end()


@pytest.mark.parametrize("first_refused", ["dead letter", "transaction"])
def test_a_clock_that_was_hours_ahead_blames_nobody(
    jumping: Installation, clock: MovingClock, first_refused: str
) -> None:
    """The broker refuses partition time; another clock is found, and no dead letter is written.

    Who has not decided is asked, too.
    """
    installation = jumping
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders", message_timestamp_after_max_ms=str(HOUR_MS))
    daemon = installation.start(
        transaction_timeout_ms=1000, check_interval_ms=500, check_backoff_ms_max=500
    )
    first = installation.pass_through(orders)
    if first_refused == "transaction":
        dead_topic = installation.names.dead
        installation.alter(dead_topic, message_timestamp_after_max_ms=str(10 * HOUR_MS))
    installation.tail(orders).until(1)
    clock.move(2 * 3600)
    junk = installation.write(installation.names.half, b"junk")
    assert junk.append_ms > first.append_ms + HOUR_MS
    clock.move(0)

    undecided = installation.half(orders)
    # Of several records in a batch the broker says that they are invalid, and not why.
    one = installation.half(orders, real_partition=0)
    two = installation.half(orders, one.transaction_id, message_index=1, real_partition=0)
    installation.commit(two, message_count=2)
    later = [installation.pass_through(orders) for _ in range(5)]

    seen = [each.transaction_id for each in installation.tail(orders).until(8)]
    assert seen == [each.transaction_id for each in (first, one, two, *later)]
    assert daemon.metric("halfbridge_kafka_txn_failures_total") > 0
    check, *_ = installation.checks(1)
    assert check.check.transaction_id == undecided.transaction_id
    assert {each.dead.reason for each in installation.dead_letters()} == {DeadReason.INVALID}
