"""What a worker holds: a million undecided transactions, and a restart in the midst of them."""

import os
import time

import pytest
from confluent_kafka.admin import NewTopic

from halfbridge.bridge import Message, Resolution, TransactionProducer
from halfbridge.kafka.admin import AdminClient
from tests.faults.mass import Mass, Worker
from tests.faults.stage import Stage
from tests.kit.reading import reader_of
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

UNDECIDED = int(os.environ.get("HALFBRIDGE_BOUNDS_UNDECIDED") or 1_000_000)
_DEAD_GROUP = "nobody-lives"
# 1.5 GB for a million; what a worker needs anyway does not shrink with fewer.
_PEAK_MIB_MAX = 250 + 1180 * UNDECIDED // 1_000_000
_REBUILT_S_MAX = 300.0  # a busy machine's bound; the figure is printed
_LIVE = 20
_LIVE_S_MAX = 30.0
_CHECK_RATE_MAX = 2_000  # the default, a second and worker
_WATCHED_S = 10.0  # the time whose rate is measured


def _latencies_s(stage: Stage) -> list[float]:
    """Commit transactions of a living group, one by one; return when each was seen, ascending.

    Not counted: the first one, with which client and reader find their brokers.
    """
    topic = stage.real_topics[1]
    reader = reader_of(stage.servers, [topic], partitions=4)
    seconds = []
    with TransactionProducer(
        bootstrap_servers=stage.servers,
        producer_group="shop",
        topics=[topic],
        topic_prefix=stage.prefix,
        checker=lambda _: Resolution.UNKNOWN,
    ) as producer:
        for number in range(_LIVE + 1):
            value = f"live {number}".encode()
            began = time.monotonic()
            with producer.begin() as tx:
                tx.send(Message(topic, key=value, value=value))
            message = reader.poll(_LIVE_S_MAX)
            assert message is not None, f"transaction {number} was not delivered"
            assert message.value() == value
            seconds.append(time.monotonic() - began)
    reader.close()
    return sorted(seconds[1:])


def test_case_040_a_million_undecided_and_a_restart(own_stage: Stage) -> None:
    """Memory stays bounded, checks are paced, and a new transaction is delivered meanwhile.

    Their producer group is gone, so nothing is ever answered; bodies beyond the budget are let go
    and would be read again.
    """
    stage = own_stage.make()
    check_topic = stage.names.check(_DEAD_GROUP)
    admin = AdminClient({"bootstrap.servers": stage.servers})
    admin.create_topics([NewTopic(check_topic, 4, 1)])[check_topic].result(_LIVE_S_MAX)
    mass = Mass(stage, producer_group=_DEAD_GROUP, real_topic=stage.real_topics[0])
    mass.store_halves(UNDECIDED)
    first = Worker(stage, "first")
    until(
        "all half messages are read",
        lambda: first.metric("rocketmq_half_messages") >= UNDECIDED,
        within_s=_REBUILT_S_MAX,
    )
    stage.children.kill(first.child)

    began = time.monotonic()
    worker = Worker(stage, "second")
    until(
        "all are rebuilt",
        lambda: worker.metric("rocketmq_half_messages") >= UNDECIDED,
        within_s=_REBUILT_S_MAX,
    )
    rebuilt_s = time.monotonic() - began

    began, sent = time.monotonic(), worker.metric("halfbridge_checks_sent_total")
    latencies_s = _latencies_s(stage)
    time.sleep(max(0.0, began + _WATCHED_S - time.monotonic()))
    sent = worker.metric("halfbridge_checks_sent_total") - sent
    rate = sent / (time.monotonic() - began)
    peak_mib = worker.peak_mib()
    print(
        f"{UNDECIDED} undecided: rebuilt {rebuilt_s:.1f} s after its start, peak {peak_mib} MiB,"
        f" {rate:.0f} checks/s, new transactions seen after {latencies_s[_LIVE // 2]:.3f} s (p50),"
        f" {latencies_s[-1]:.3f} s (slowest)"
    )
    assert 0 < rate <= _CHECK_RATE_MAX * 1.1
    assert peak_mib <= _PEAK_MIB_MAX
    assert worker.metric("rocketmq_half_messages") >= UNDECIDED
