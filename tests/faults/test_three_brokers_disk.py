"""A broker whose disk is full."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.faults.disks import doctor_codes, fill, small_disk
from tests.faults.scene import Scene
from tests.kit.cluster import ProxiedCluster
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

_FULL_NODE = 3
# Twice the broker's session (6 s): the others no longer count it as in sync.
_FULL_S = 15.0
_START_S = 180.0


@pytest.fixture
def small_disk_scene(
    tmp_path: Path, make_scene: Callable[[ProxiedCluster], AbstractContextManager[Scene]]
) -> Iterator[Scene]:
    root = tmp_path / "cluster"
    with (
        small_disk(root / f"node-{_FULL_NODE}" / "data"),
        make_scene(ProxiedCluster(3, directory=root)) as scene,
    ):
        yield scene


def test_case_49_the_disk_of_one_broker_is_full(small_disk_scene: Scene) -> None:
    """The broker gives up, the others go on without it; with room again it comes back.

    What it had acknowledged is on the others, and doctor finds replicas that are behind.
    """
    scene = small_disk_scene
    scene.begin()
    node = scene.cluster.node(_FULL_NODE)
    ballast = node.directory / "data" / "ballast"
    fill(ballast)
    scene.note("disk of one broker full")
    until("the broker with the full disk gives up", lambda: not node.is_running)
    scene.healed()
    time.sleep(_FULL_S)
    assert "topic-in-sync" in doctor_codes(scene.stage)
    scene.healed()
    ballast.unlink()
    node.spawn()
    node.wait_ready(brokers_min=3, timeout_s=_START_S)
    scene.await_in_sync()
    scene.healed()

    scene.finish()
