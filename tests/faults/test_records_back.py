"""Records that an operator deleted come back."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.errors import AdminError
from halfbridge.kafka.admin import AdminClient
from halfbridge.serde.progress import parse_progress
from halfbridge.testkit.broker import EmbeddedBroker
from tests.faults.scene import PATIENT
from tests.faults.stage import Stage, seed_of_run
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

_CALL_S = 60.0
_PARTITIONS = range(4)
_BACK_S = 120.0
_PROPERTIES = {
    **PATIENT,
    # What DeleteRecords did is written to the disk by an orderly end only: not each minute.
    "log.flush.start.offset.checkpoint.interval.ms": "3600000",
}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Yield a broker that is slow to write down what it deleted."""
    with EmbeddedBroker(properties=_PROPERTIES) as started:
        yield started


def _needed_no_more(stage: Stage) -> dict[tuple[str, int], int] | None:
    """Return before which offset the daemon needs nothing, once that is something everywhere."""
    names = stage.names
    places = [TopicPartition(topic, p) for topic in (names.half, names.op) for p in _PARTITIONS]
    asker = Consumer({"bootstrap.servers": stage.direct, "group.id": names.daemon_group})
    found = {(one.topic, one.partition): one for one in asker.committed(places, _CALL_S)}
    asker.close()
    floors = {}
    for partition in _PARTITIONS:
        half, op = found[names.half, partition], found[names.op, partition]
        progress = parse_progress(half.offset, op.offset, op.metadata)
        floors[names.half, partition] = progress.half
        floors[names.op, partition] = progress.ops_from
    return floors if all(floors[names.half, partition] > 0 for partition in _PARTITIONS) else None


def _trim(stage: Stage, floors: dict[tuple[str, int], int]) -> None:
    """Delete the records below each floor."""
    admin: Any = AdminClient({"bootstrap.servers": stage.direct})
    wanted = [TopicPartition(*place, floor) for place, floor in floors.items()]
    for place, done in admin.delete_records(wanted).items():
        assert done.result(_CALL_S).low_watermark == floors[place.topic, place.partition]


def _starts(stage: Stage) -> list[int] | None:
    """Return where each half partition's log starts, once its leader is back."""
    cluster = Cluster(stage.direct)
    try:
        return [cluster.watermarks(stage.names.half, p)[0] for p in _PARTITIONS]
    except AdminError:
        return None


def test_case_46_trimmed_records_come_back(broker: EmbeddedBroker, own_stage: Stage) -> None:
    """An operator trims half and op topic under load; the only broker dies before that is on disk.

    The trimmed records are there again. Workers killed with it, which rebuild what they knew from
    these logs, deliver none of them a second time.
    """
    seed = seed_of_run()
    stage = own_stage.make(partitions=len(_PARTITIONS))
    daemon = stage.daemon("--workers", "2")
    clients = stage.usual_clients(seed=seed, pipelined=150, blocking=60)
    stage.await_more(400)
    trimmed = until("something can be trimmed everywhere", lambda: _needed_no_more(stage))
    _trim(stage, trimmed)
    stage.injected["half and op partitions trimmed"] += len(trimmed)
    stage.await_more(50)

    broker.kill()
    for worker in daemon.workers():
        os.kill(worker, signal.SIGKILL)
        stage.injected["worker killed"] += 1
    broker.restart()
    stage.injected["broker killed and started again"] += 1
    back = until("every half partition is led again", lambda: _starts(stage), within_s=_BACK_S)
    assert all(start < trimmed[stage.names.half, p] for p, start in enumerate(back))
    stage.await_more(300)

    stage.end_judged(clients)
    assert stage.stop(daemon) == 0
