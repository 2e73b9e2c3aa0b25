"""Fixtures of databases: SQLite, PostgreSQL, MariaDB and MySQL."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, make_url

from halfbridge.sql.inbox import Inbox
from halfbridge.sql.local_messages.writer import LocalMessages
from halfbridge.testkit.children import Children, Interrupts
from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
from tests.faults.stage import Stage
from tests.integration.producing import Cluster
from tests.sql.databases import (
    KINDS,
    Database,
    OwnDatabase,
    ProxiedDatabase,
    shared_database,
    sqlite_database,
)
from tests.sql.fence_scene import Scene, new_cluster
from tests.sql.relaying import Scene as RelayScene
from tests.sql.relaying import scene as relay_scene
from tests.sql.servers import MariaDbServer, MySqlServer, PostgresServer, Template


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests on MySQL `long`, except tests marked `more`.

    MySQL shares MariaDB's code. All tests on both would make `make test-all` minutes longer.
    """
    here = Path(__file__).parent
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        if (
            item.path.parent == here
            and any(isinstance(each, str) and each == "mysql" for each in given.values())
            and not item.get_closest_marker("more")
        ):
            item.add_marker("long")


@pytest.fixture(scope="session")
def postgresql_template() -> Iterator[Template]:
    """An initialised data directory, copied for each server."""
    with closing(Template(PostgresServer)) as made:
        yield made


@pytest.fixture(scope="session")
def mariadb_template() -> Iterator[Template]:
    """An initialised data directory, copied for each server."""
    with closing(Template(MariaDbServer)) as made:
        yield made


@pytest.fixture(scope="session")
def mysql_template() -> Iterator[Template]:
    """An initialised data directory, copied for each server."""
    with closing(Template(MySqlServer)) as made:
        yield made


@pytest.fixture(scope="session")
def postgresql_server(postgresql_template: Template) -> Iterator[PostgresServer]:
    """The session's server: many databases, not durable; no test kills it."""
    with PostgresServer(postgresql_template, durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server(mariadb_template: Template) -> Iterator[MariaDbServer]:
    """The session's server: many databases, not durable; no test kills it."""
    with MariaDbServer(mariadb_template, durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server(mysql_template: Template) -> Iterator[MySqlServer]:
    """The session's server: many databases, not durable; no test kills it."""
    with MySqlServer(mysql_template, durable=False) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "mysql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database of this test's own, on each kind in turn.

    For some kinds only: `@pytest.mark.parametrize("database", ["mariadb"], indirect=True)`.
    """
    if request.param == "sqlite":
        with closing(sqlite_database(tmp_path)) as made:
            yield made
        return
    with _shared_database(request) as made:
        yield made


@pytest.fixture(params=["postgresql", "mariadb", "mysql"])
def proxied_database(request: pytest.FixtureRequest) -> Iterator[ProxiedDatabase]:
    """An empty database of this test's own, behind a proxy that can cut it off."""
    with _shared_database(request) as direct, closing(ProxiedDatabase(direct)) as made, made.proxy:
        yield made


@pytest.fixture(params=["postgresql", "mariadb", "mysql"])
def own_database(request: pytest.FixtureRequest) -> Iterator[OwnDatabase]:
    """A durable server with one database of this test's own, to be killed and restarted."""
    kind = KINDS[request.param]
    template = request.getfixturevalue(f"{request.param}_template")
    with kind(template, durable=True) as server, closing(OwnDatabase(server)) as made:
        yield made


@contextmanager
def _shared_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    server = request.getfixturevalue(f"{request.param}_server")
    with closing(shared_database(server)) as made:
        yield made
    server.drop_database(make_url(made.url).database)


@pytest.fixture(scope="module")
def cluster(kafka_bootstrap_servers: str) -> Cluster:
    """An installation that this file's tests share."""
    return new_cluster(kafka_bootstrap_servers)


@pytest.fixture(scope="module")
def producer(cluster: Cluster) -> Iterator[Any]:
    """A started producer that this file's tests share."""
    with cluster.producer() as made:
        yield made


@pytest.fixture
def stage(kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    """An installation of a test's own, without topics yet; its processes end with the test."""
    with Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as children:
        made = Stage(kafka_bootstrap_servers, topic_prefix, tmp_path, children)
        yield made
    made.close()


@pytest.fixture
def engine(database: Database) -> Engine:
    return database.engine()


# --- halfbridge.sql on these databases -----------------------------------------------------


@pytest.fixture
def scene(database: Database, cluster: Cluster, producer: Any) -> Scene:
    """A service with a fence on one database, and Kafka."""
    return Scene(database, cluster=cluster, producer=producer)


@pytest.fixture
def inbox(engine: Engine) -> Inbox:
    """A group's inbox with its table."""
    made = Inbox(engine, group_id="billing")
    made.create()
    return made


@pytest.fixture
def messages(engine: Engine) -> LocalMessages:
    """A new local message table."""
    made = LocalMessages(engine)
    made.create()
    return made


@pytest.fixture
def topic(request: pytest.FixtureRequest, halfbridge_topics: OwnTopics) -> str:
    """A real topic of this test's own with TOPIC_PARTITIONS of its file, or else two partitions."""
    partitions = getattr(request.module, "TOPIC_PARTITIONS", 2)
    return halfbridge_topics.create("orders", partitions=partitions)


@pytest.fixture
def relaying(
    database: Database, halfbridge_stack: HalfbridgeStack, topic: str
) -> Iterator[RelayScene]:
    """A local message table, a fence and a producer."""
    with relay_scene(database.engine(), halfbridge_stack, topic) as made:
        yield made
