"""The oldest and the newest Kafka that this is made for: one after the other, and side by side."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.history import read_client_logs
from halfbridge.testkit.jars import broker_jars
from tests.faults.plan import Kind, planned
from tests.faults.scene import PATIENT, Scene
from tests.faults.stage import Stage, seed_of_run
from tests.kit.caches import jar_settings
from tests.kit.cluster import ProxiedCluster

pytestmark = [pytest.mark.broker, pytest.mark.long]

# Not 4.2.0: its coordinators send markers that older brokers refuse (KAFKA-20322), so that every
# kafka_txn with a partition on one of these hangs until the last broker is upgraded.
_OLD, _NEW = "3.9.1", "4.2.1"
_START_S = 180.0
_CLIENT = "same"
_RATE = 120
_DELIVERED = 600
# What these deliver is a race between a late decision and a check: not the same in two runs.
_RACES = frozenset((Kind.TARDY, Kind.CONTRADICTED))


@pytest.fixture
def old(
    make_scene: Callable[[ProxiedCluster], AbstractContextManager[Scene]], tmp_path: Path
) -> Iterator[Scene]:
    """Yield a scene on three brokers of the older version, whose logs stay when the test fails."""
    cluster = ProxiedCluster(
        3, kafka_version=_OLD, properties=PATIENT, directory=tmp_path / "brokers"
    )
    with make_scene(cluster) as scene:
        yield scene


def test_case_55_brokers_are_upgraded_under_load(old: Scene) -> None:
    """Each of three brokers in turn ends in order as Kafka 3.9 and comes back as 4.2.

    The feature level of the cluster stays where it was, as it does until an operator raises it.
    """
    newer = broker_jars(_NEW, jar_settings())
    old.begin()
    for each in old.cluster.node_ids:
        node = old.cluster.node(each)
        node.terminate()
        old.note(f"broker upgraded from {_OLD} to {_NEW}")
        old.healed()
        node.use(newer)
        node.spawn()
        node.wait_ready(brokers_min=3, timeout_s=_START_S)
        old.await_in_sync()
        old.healed()

    old.finish()


def test_case_56_the_same_workload_on_two_kafkas(
    tmp_path: Path, make_stage: Callable[..., Stage]
) -> None:
    """With one seed, the same messages are delivered by Kafka 3.9 and by 4.2.

    Compared is what both runs came to. Late decisions race with checks, so they may differ.
    """
    seed = seed_of_run()
    delivered = {}
    reached = []
    for version in (_OLD, _NEW):
        directory = tmp_path / version
        directory.mkdir()
        stage = make_stage(EmbeddedBroker(properties=PATIENT, kafka_version=version), directory)
        stage.injected[f"run on Kafka {version}"] += 1
        reached.append(_run(stage, seed))
        delivered[version] = {record.value for record in stage.witnessed()}
    wanted = {
        message.value
        for plan in (planned(_CLIENT, seed, number) for number in range(1, min(reached)))
        if plan.kind not in _RACES
        for message in plan.messages
    }

    assert min(reached) > _DELIVERED // 2
    assert delivered[_OLD] & wanted
    assert delivered[_OLD] & wanted == delivered[_NEW] & wanted


def _run(stage: Stage, seed: int) -> int:
    """Have the workload done and judged; return how many transactions it began."""
    stage.make()
    daemon = stage.daemon("--workers", "2")
    client = stage.client(_CLIENT, seed=seed, rate=_RATE, pipelined=True)
    stage.await_more(_DELIVERED)
    stage.end_judged([client])
    assert stage.stop(daemon) == 0
    stage.children.kill(client)
    return len(read_client_logs(stage.directory.glob("client-*.jsonl")))
