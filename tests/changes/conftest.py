"""Fixtures of tests with a real Kafka Connect worker: databases are those of tests/sql."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from halfbridge.testkit.connect import ConnectWorker
from tests.sql.conftest import (  # noqa: F401  (fixtures, which pytest finds by name)
    database,
    mariadb_server,
    mariadb_template,
    postgresql_server,
    postgresql_template,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def worker(kafka_bootstrap_servers: str) -> Iterator[ConnectWorker]:
    """The session's worker; each test has connectors of its own."""
    group_id = f"connect-{secrets.token_hex(4)}"
    with ConnectWorker(kafka_bootstrap_servers, group_id=group_id) as running:
        yield running
