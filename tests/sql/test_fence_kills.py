"""Order services that die, and databases and daemons that do: what stands is what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.stage import seed_of_run
from tests.sql.databases import durable_database
from tests.sql.fence_kills_scene import FenceScene

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.stage import Stage
    from tests.sql.databases import Database

pytestmark = pytest.mark.broker

KILLS, SERVER_EVERY, DAEMON_EVERY = 7, 4, 6  # the fourth is the server's, the sixth a daemon's
BLOCKS_MAX = 12  # of a service, before it dies


@pytest.fixture(
    params=[
        # One kind in the short part, with a server to kill; tests/faults has all of them.
        pytest.param("sqlite", marks=pytest.mark.long),
        "postgresql",
        pytest.param("mariadb", marks=pytest.mark.long),
    ]
)
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Yield a database whose server, where it has one, may be killed."""
    with durable_database(request.param, tmp_path) as made:
        yield made


def test_what_stands_comes_out_once_and_in_order(stage: Stage, durable: Database) -> None:
    """Services are killed at steps that a seed draws, the database server and a daemon once."""
    scene = FenceScene(stage, durable, seed=seed_of_run(), is_brief=True)
    scene.begin(services=2)
    scene.run(
        KILLS,
        services=2,
        blocks_max=BLOCKS_MAX,
        server_every=SERVER_EVERY,
        daemon_every=DAEMON_EVERY,
    )
    scene.check()
