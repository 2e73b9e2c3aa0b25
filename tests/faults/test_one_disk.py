"""The only broker's disk is full, or slow: there is no other replica to fall back to."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from halfbridge.testkit.ports import HOST, free_ports
from tests.faults.disks import doctor_codes, fill, small_disk
from tests.faults.preload import built
from tests.faults.scene import PATIENT, Scene
from tests.kit.cluster import ProxiedCluster
from tests.kit.http import answer_of
from tests.kit.waiting import until

MakeScene = Callable[[ProxiedCluster], AbstractContextManager[Scene]]

pytestmark = [pytest.mark.broker, pytest.mark.long]

_NODE = 1
_FULL_S = 60.0
_ALERT_S = 120.0
_START_S = 180.0
_SYNC_MS = 2000
# Ten syncs of _SYNC_MS, one after the other.
_SLOW_S = 20.0
_SYNCED = {
    **PATIENT,
    # Kafka leaves the writing to the operating system: then a slow disk would not show.
    "log.flush.interval.messages": "10",
}


@pytest.fixture
def small(tmp_path: Path, make_scene: MakeScene) -> Iterator[Scene]:
    """Yield a scene whose only broker has a small disk."""
    root = tmp_path / "cluster"
    cluster = ProxiedCluster(1, directory=root)
    with small_disk(root / f"node-{_NODE}" / "data"), make_scene(cluster) as scene:
        yield scene


def test_case_49_all_disks_are_full(small: Scene) -> None:
    """Nothing can be written anywhere: nothing is acknowledged that is not there afterwards.

    The alert of docs/incidents/ fires, and doctor finds that no broker answers. With room again,
    and the broker back, everything resumes.
    """
    (port,) = free_ports(1)
    small.begin("--metrics-port", str(port))
    node = small.cluster.node(_NODE)
    ballast = node.directory / "data" / "ballast"
    fill(ballast)
    small.note("disk of the only broker full")
    until("the broker gives up", lambda: not node.is_running, within_s=_FULL_S)
    until("the alert", lambda: _cannot_work(port), within_s=_ALERT_S)
    assert doctor_codes(small.stage) == {"unreachable"}
    ballast.unlink()
    node.spawn()
    node.wait_ready(timeout_s=_START_S)
    small.healed()

    small.finish()


def _cannot_work(port: int) -> bool:
    """Tell whether the metric of HalfbridgeCannotWork is 1 for a worker."""
    lines = answer_of(f"http://{HOST}:{port}/metrics")[1].splitlines()
    return any(
        line.startswith("halfbridge_unhealthy{")
        and 'cause="work"' in line
        and line.endswith(" 1.0")
        for line in lines
    )


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """Return the file that makes the broker's disk slow while it exists."""
    return tmp_path / "slow"


@pytest.fixture
def synced(
    tmp_path: Path, make_scene: MakeScene, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """Yield a scene whose only broker syncs often, on a disk that can be made slow."""
    monkeypatch.setenv("LD_PRELOAD", str(built("slow_disk.c", tmp_path)))
    monkeypatch.setenv("SLOW_DISK_WHILE", str(slow))
    monkeypatch.setenv("SLOW_DISK_MS", str(_SYNC_MS))
    with make_scene(ProxiedCluster(1, properties=_SYNCED)) as scene:
        monkeypatch.undo()
        yield scene


def test_case_49_a_slow_disk(synced: Scene, slow: Path) -> None:
    """For 20 s each sync takes 2 s: requests time out, are repeated, and are done once."""
    synced.begin()
    slow.touch()
    time.sleep(_SLOW_S)
    syncs = slow.stat().st_size
    slow.unlink()
    synced.note("sync of a file that took 2 s more", syncs)
    synced.healed()

    assert syncs > 0
    synced.finish()
