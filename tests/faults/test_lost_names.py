"""The name of the brokers has no address for a while, and then another one."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from halfbridge.testkit.ports import HOST
from tests.faults.listener import listener
from tests.faults.preload import built
from tests.faults.scene import HEALED_S
from tests.faults.stage import Stage, seed_of_run

pytestmark = [pytest.mark.broker, pytest.mark.long]

_NAME = "kafka.halfbridge.test"  # nobody has it
_NEW_ADDRESS = "127.0.0.2"
# More than two sessions (6 s): no member has one from before.
_WITHOUT_S = 15.0


def test_case_52_names_are_lost_and_all_addresses_change(
    tmp_path: Path, make_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing resolves, the broker moves to another address, a worker starts in the meantime.

    With the name server back, all of them find the broker where it is now, by themselves.
    """
    way, address = listener(_NAME), tmp_path / "address"
    address.write_text(HOST)
    broker = way.broker(tmp_path / "cluster")
    stage = make_stage(broker)
    monkeypatch.setenv("LD_PRELOAD", str(built("lost_names.c", tmp_path)))
    monkeypatch.setenv("LOST_NAME", _NAME)
    monkeypatch.setenv("LOST_NAME_IN", str(address))
    seed = seed_of_run()
    stage.make()  # the witness comes by the broker's own address
    stage.servers = way.servers
    daemon = stage.daemon("--workers", "2")
    clients = stage.usual_clients(seed=seed, pipelined=150, blocking=60)
    stage.await_more(200)

    address.unlink()
    stage.injected["no name server answers"] += 1
    stage.await_more(50)  # connected clients continue
    broker.kill()
    config = broker.node().directory / "server.properties"
    before = config.read_text("utf-8")
    config.write_text(before.replace(way.bound(HOST), way.bound(_NEW_ADDRESS)), "utf-8")
    assert config.read_text("utf-8") != before
    broker.restart()
    stage.injected["all addresses change"] += 1
    os.kill(daemon.await_workers(2)[0], signal.SIGKILL)
    stage.injected["worker killed"] += 1
    stage.await_standstill(_WITHOUT_S)  # nobody finds the broker without its name
    assert daemon.is_alive, daemon.log()

    address.write_text(_NEW_ADDRESS)
    stage.recover(300, within_s=HEALED_S)
    stage.end_judged(clients)
    assert len(daemon.await_workers(2)) == 2
    assert stage.stop(daemon) == 0
