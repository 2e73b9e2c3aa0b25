"""Order services, database servers and daemons that are killed: messages match rows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.stage import Stage, seed_of_run
from tests.sql.databases import ASYNC_DRIVERS, Database, durable_database
from tests.sql.fence_kills_scene import FenceScene
from tests.sql.fence_plan import Kind

pytestmark = pytest.mark.broker

KILLS, SERVER_EVERY, DAEMON_EVERY = 7, 4, 6  # the fourth is the server's, the sixth a daemon's
BLOCKS_MAX = 12  # per service, before it dies
BLOCKS_BEFORE_DEATH = 6


@pytest.fixture(
    params=[
        # One kind in the short part, with a server to kill; tests/faults has all of them.
        pytest.param("sqlite", marks=pytest.mark.long),
        "postgresql",
        pytest.param("mariadb", marks=pytest.mark.long),
        "mysql",
    ]
)
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Yield a database whose server, where it has one, may be killed."""
    with durable_database(request.param, tmp_path) as made:
        yield made


def test_committed_rows_are_sent_once_and_in_order(stage: Stage, durable: Database) -> None:
    """Messages match rows though services, the database server and a daemon are killed."""
    scene = FenceScene(stage, durable, seed=seed_of_run(), flags=("--brief",))
    scene.begin(services=2)
    scene.run(
        KILLS,
        services=2,
        blocks_max=BLOCKS_MAX,
        server_every=SERVER_EVERY,
        daemon_every=DAEMON_EVERY,
    )
    scene.check()


@pytest.mark.parametrize("kind", [Kind.AROUND, pytest.param(Kind.BEHIND, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "durable",
    [
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.long),
        pytest.param("mariadb", marks=pytest.mark.long),
        "mysql",
    ],
    indirect=True,
)
def test_late_sends_at_each_step(stage: Stage, durable: Database, kind: Kind) -> None:
    """A block that sends after its statements commits all or none, after a kill at each step."""
    scene = FenceScene(stage, durable, seed=seed_of_run(), flags=("--only", kind.name))
    scene.kill_at_each_step(BLOCKS_BEFORE_DEATH)


@pytest.mark.parametrize("durable", ["sqlite", "postgresql", "mariadb", "mysql"], indirect=True)
def test_what_is_taken_is_done_and_said_once_at_each_step(stage: Stage, durable: Database) -> None:
    """With inbox and fence in one block, a successor that takes all messages again repeats nothing.

    Each message taken has one mark, its work once, and its messages once.
    """
    scene = FenceScene(stage, durable, seed=seed_of_run(), flags=("--only", Kind.TAKEN.name))
    scene.kill_at_each_step(BLOCKS_BEFORE_DEATH)
    assert scene.endings().get("TAKEN TakenBeforeError", 0) >= BLOCKS_BEFORE_DEATH


@pytest.mark.parametrize("kind", [Kind.AROUND, pytest.param(Kind.TAKEN, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("durable", "driver"),
    [
        pytest.param(name, driver, id=driver, marks=[] if name == "sqlite" else pytest.mark.long)
        for name, drivers in ASYNC_DRIVERS.items()
        for driver in drivers
    ],
    indirect=["durable"],
)
def test_blocks_on_asyncio_at_each_step(
    stage: Stage, durable: Database, driver: str, kind: Kind
) -> None:
    """A block of AsyncFence commits all or none, after a kill at each step."""
    flags = ("--asyncio", driver, "--only", kind.name)
    scene = FenceScene(stage, durable, seed=seed_of_run(), flags=flags)
    scene.kill_at_each_step(BLOCKS_BEFORE_DEATH)
