"""A broker whose disk is full."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from halfbridge.testkit.cluster import EmbeddedCluster
from halfbridge.testkit.pytest_plugin import leave_out
from tests.faults.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.faults.scene import Scene

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]

_DISK_MIB = 192
_BALLAST_BYTES = 1 << 20
_FULL_NODE = 3
_FULL_S = 15.0
_START_S = 180.0


@contextmanager
def _small_disk(path: Path) -> Iterator[None]:
    """Mount a small file system on `path`; leaves the test out where that is not allowed."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "halfbridge-test", str(path)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        leave_out(f"a small disk cannot be mounted: {error}")
    if done.returncode:
        leave_out(f"a small disk cannot be mounted: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def _fill(ballast: Path) -> None:
    """Write until nothing fits any more."""
    with ballast.open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(_BALLAST_BYTES))
            file.flush()


@pytest.fixture
def small_disk_scene(
    tmp_path: Path, make_scene: Callable[[EmbeddedCluster], AbstractContextManager[Scene]]
) -> Iterator[Scene]:
    """Yield a scene in which one broker has a small disk."""
    root = tmp_path / "cluster"
    with (
        _small_disk(root / f"node-{_FULL_NODE}" / "data"),
        make_scene(EmbeddedCluster(3, directory=root, proxied=True)) as scene,
    ):
        yield scene


def test_case_49_the_disk_of_one_broker_is_full(small_disk_scene: Scene) -> None:
    """The broker gives up, the others go on without it; with room again it comes back.

    What it had acknowledged is on the others.
    """
    scene = small_disk_scene
    scene.begin()
    node = scene.cluster.node(_FULL_NODE)
    ballast = node.directory / "data" / "ballast"
    _fill(ballast)
    scene.note("disk of one broker full")
    until("the broker with the full disk gives up", lambda: not node.is_running)
    scene.healed()
    time.sleep(_FULL_S)
    scene.healed()
    ballast.unlink()
    node.spawn()
    node.wait_ready(brokers_min=3, timeout_s=_START_S)
    scene.await_in_sync()
    scene.healed()

    scene.finish()
