"""Order services with a fence, a hundred kills on each database, and the verdict by its rows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.stage import Stage, seed_of_run
from tests.sql.databases import Database, OwnDatabase, durable_database
from tests.sql.fence_kills_scene import FenceScene
from tests.sql.fence_plan import Step, kinds_on

pytestmark = [pytest.mark.broker, pytest.mark.long]

KILLS = 112
TRANSACTIONS = 2_000
SERVICES = 3  # that die; one beside them lives on, for blocks that take longer than their lives
BLOCKS_MAX = 30  # of a service, before it dies
SERVER_EVERY, DAEMON_EVERY = 9, 13  # kills, of which the last is the server's, or a daemon's


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A durable database of this test's own; of a server's, one that may be killed."""
    with durable_database(request.param, tmp_path) as made:
        yield made


def test_the_fence_outlives_killed_services_servers_and_daemons(
    stage: Stage, database: Database
) -> None:
    """Committed rows = delivered messages, each once, in order per key, over all kills.

    Lock time-outs, deadlocks, serialization failures, late and slow blocks are among them.
    """
    scene = FenceScene(stage, database, seed=seed_of_run())
    scene.begin(services=SERVICES + 1)
    scene.start(SERVICES, "--each-first")
    scene.run(
        KILLS,
        services=SERVICES,
        blocks_max=BLOCKS_MAX,
        server_every=SERVER_EVERY,
        daemon_every=DAEMON_EVERY,
    )
    scene.await_transactions(TRANSACTIONS)
    scene.check()
    # A run that lacks what it claims to be about proves nothing.
    assert stage.judged["transactions"] >= TRANSACTIONS
    assert sum(stage.injected.values()) >= KILLS
    for step in Step:
        assert stage.injected[f"service killed {step.value}"] > 0, step
    assert stage.injected["daemon killed and restarted"] > 0
    if isinstance(database, OwnDatabase):
        assert stage.injected["database server killed and restarted"] > 0
    ended = {each["kind"] for each in scene.blocks()}
    assert ended == {kind.name for kind in kinds_on(database.name)}
