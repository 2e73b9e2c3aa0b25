"""The reference consumer with an inbox, killed a hundred times on each database."""

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from halfbridge.testkit.children import Children, Interrupts
from tests.integration.installation import Installation
from tests.sql.databases import Database, OwnDatabase, durable_database
from tests.sql.inbox_scene import GROUP, NAIVE, InboxScene

pytestmark = [pytest.mark.broker, pytest.mark.long]

KILLS = int(os.environ.get("HALFBRIDGE_INBOX_KILLS", "110"))
BURST = 40  # transactions between two kills, at most
TRANSACTIONS_A_KILL = 18  # at least: 2,000 of 110 kills
SERVER_EVERY = 10  # kills, of which the last is the server's


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A durable database of this test's own; of a server's, one that may be killed."""
    with durable_database(request.param, tmp_path) as made:
        yield made


def test_the_inbox_outlives_killed_consumers_and_servers(
    kafka_bootstrap_servers: str, topic_prefix: str, database: Database, tmp_path: Path
) -> None:
    """Work = messages, each once, over kills of consumers and of the database server.

    One message in ten comes twice. The same consumer without the inbox does work twice.
    """
    seed = int(os.environ.get("HALFBRIDGE_INBOX_SEED", "0")) or secrets.randbits(32)
    print(f"HALFBRIDGE_INBOX_SEED={seed}")
    with (
        closing(Installation(kafka_bootstrap_servers, topic_prefix)) as installation,
        Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as children,
    ):
        scene = InboxScene(installation, database, children, tmp_path, seed=seed)
        scene.start((GROUP, "one"), (GROUP, "two"), (NAIVE, "three"))
        every = SERVER_EVERY if isinstance(database, OwnDatabase) else 0
        scene.run(kills=KILLS, burst=BURST, server_every=every)
        scene.send(max(0, TRANSACTIONS_A_KILL * KILLS - scene.transactions))
        scene.finish()
        done, naive = scene.done(GROUP), scene.done(NAIVE)
    print(
        f"{database.name}: {scene.killed} kills, {scene.crashed} consumers ended by the database,"
        f" {scene.transactions} transactions, {len(scene.sent)} messages, {scene.repeated} of them"
        f" delivered twice; work done {done.total()} times; without inbox {naive.total()} times"
    )
    assert done == Counter(scene.sent)
    assert naive.keys() == done.keys()
    assert naive.total() > len(scene.sent) + scene.repeated
