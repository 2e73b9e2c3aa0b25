"""Fixtures of tests with a real Kafka Connect worker: databases are those of tests/sql."""

import secrets
from collections.abc import Iterator

import pytest

from halfbridge.testkit.connect import ConnectWorker
from tests.changes.streams import Stream
from tests.sql.conftest import (  # noqa: F401  (fixtures, which pytest finds by name)
    database,
    mariadb_server,
    mariadb_template,
    mysql_server,
    mysql_template,
    own_database,
    postgresql_server,
    postgresql_template,
)
from tests.sql.databases import Database


@pytest.fixture(scope="session")
def worker(kafka_bootstrap_servers: str) -> Iterator[ConnectWorker]:
    """The session's worker; each test has connectors of its own."""
    group_id = f"connect-{secrets.token_hex(4)}"
    with ConnectWorker(kafka_bootstrap_servers, group_id=group_id) as running:
        yield running


@pytest.fixture
def stream(
    database: Database,  # noqa: F811  (the fixture)
    worker: ConnectWorker,
    kafka_bootstrap_servers: str,
) -> Iterator[Stream]:
    """A connector that ends with the test."""
    made = Stream(database, worker, kafka_bootstrap_servers)
    yield made
    worker.rest.delete(made.name)
