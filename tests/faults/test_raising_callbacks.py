"""What a Kafka client calls back from within consume() raises."""

from pathlib import Path

import pytest

from tests.faults.raising_log import RAISED
from tests.faults.scene import Scene
from tests.faults.stage import Daemon, seed_of_run
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

_SCRIPT = Path(__file__).with_name("raising_log.py")
_CUTS = 5


def test_case_01_a_log_handler_raises_inside_consume(one: Scene) -> None:
    """Connections are lost, which the client tells from within consume(), where a handler raises.

    Had that come out of consume(), the records which it had taken would have been gone.
    """
    seed = seed_of_run()
    stage = one.stage.make()
    stage.load.append("checker run, with a log handler that raises")
    daemon = Daemon(
        stage.start(
            "daemon",
            (str(_SCRIPT), "checker", "run", "--bootstrap-servers", stage.servers),
            ("--topic-prefix", stage.prefix, "--state-dir", str(stage.directory / "state")),
        )
    )
    clients = stage.usual_clients(seed=seed, pipelined=150, blocking=50)
    stage.await_more(100)
    for _ in range(_CUTS):
        one.proxy.cut()
        stage.injected["all connections reset"] += 1
        one.proxy.heal()
        one.healed(50)
    until("the handler raised", lambda: RAISED in daemon.log())
    stage.injected["a log handler raises in a callback"] += daemon.log().count(RAISED)

    stage.end_judged(clients)
    assert daemon.is_alive
    assert stage.stop(daemon) == 0
