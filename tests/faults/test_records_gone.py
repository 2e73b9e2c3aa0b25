"""Records that a topic's retention deletes too early."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.testkit.broker import EmbeddedBroker
from tests.faults.scene import PATIENT
from tests.integration.installation import HALF_RETENTION_MS, Installation
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

_GONE_S = 120.0
_STOPPED = "below the log start"
_PROPERTIES = {
    **PATIENT,
    # Retention is looked after at once, not after half a minute and then every five minutes.
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Yield a broker that deletes soon."""
    with EmbeddedBroker(properties=_PROPERTIES) as started:
        yield started


@pytest.fixture
def installation(broker: EmbeddedBroker, topic_prefix: str) -> Iterator[Installation]:
    with closing(Installation(broker.bootstrap_servers, topic_prefix)) as made:
        yield made


def test_case_19_retention_takes_an_undecided_half(installation: Installation) -> None:
    """The half topic's retention was made too short, and took what nobody had decided.

    A worker that was there all the time still has the message, and delivers it once it is
    committed. One that starts stops at that partition with a clear error, although the commit of
    the other one is in the op log: nothing is skipped silently. Other partitions continue.
    """
    names = installation.names
    installation.make(partitions=2)
    orders = installation.topic("orders")
    daemon = installation.start(leave=True)
    held, lost = (installation.half(orders) for _ in range(2))
    before = installation.pass_through(orders).transaction_id
    installation.await_marker()
    installation.alter(names.half, retention_ms="1", segment_ms="1000")
    cluster = Cluster(installation.servers)
    until(
        "retention takes the undecided half messages",
        lambda: cluster.watermarks(names.half, 0)[0] > lost.offset,
        within_s=_GONE_S,
        explain=lambda: cluster.watermarks(names.half, 0),
    )
    installation.alter(names.half, retention_ms=str(HALF_RETENTION_MS), segment_ms="604800000")
    installation.commit(held)
    installation.await_marker()
    daemon.stop()

    daemon = installation.launch(leave=True)
    assert _STOPPED in daemon.stopped(0)
    installation.commit(lost)
    after = installation.pass_through(orders, partition=1).transaction_id

    delivered = [each.transaction_id for each in installation.delivered(orders, pairs=[1])]
    assert delivered == [before, held.transaction_id, after]
    status, body = daemon.healthz()
    assert (status, list(body["partition_errors"])) == (503, ["0"])
