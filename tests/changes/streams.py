"""A connector of a test's own, made by the command, and what its topics have."""

import json
import secrets
from typing import Any

from click.testing import CliRunner, Result
from sqlalchemy import text
from sqlalchemy.pool import NullPool

from halfbridge.changes.values import decoded, json_of
from halfbridge.cli import cli
from halfbridge.kafka.errors import KafkaFailure
from halfbridge.testkit.connect import ConnectWorker
from halfbridge.testkit.reader import read_all
from tests.kit.waiting import until
from tests.sql.databases import Database

SEEN_S_MAX = 120.0


def connector(database: Database, *words: str) -> Result:
    """Return what the command says of the database."""
    return CliRunner().invoke(
        cli, ["relay", "connector", "--database-url", database.url, *words], env={}
    )


def execute(database: Database, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    engine = database.engine(poolclass=NullPool)  # it would keep a connection for each call
    for each in statements:
        with engine.begin() as connection:
            if database.name != "postgresql":
                connection.execute(text("SET sql_mode = ''"))  # zero dates
            connection.execute(text(each.replace(":", "\\:")))


def schema_of(database: Database) -> str:
    """Return what the table's name begins with in a topic."""
    return "public" if database.name == "postgresql" else database.url.rpartition("/")[2]


class Stream:
    """A connector of a test's own for tables of its database."""

    def __init__(self, database: Database, worker: ConnectWorker, bootstrap_servers: str) -> None:
        self.name = f"c{secrets.token_hex(4)}"
        self._database = database
        self._worker = worker
        self._bootstrap_servers = bootstrap_servers

    def apply(self, *tables: str, database: Database | None = None) -> None:
        """Have the command make the connector, for another URL of the database if one is given."""
        words = [word for table in tables for word in ("--table", table)]
        done = connector(
            *(database or self._database, "--name", self.name, "--apply", self._worker.url, *words),
            *("--bootstrap-servers", self._bootstrap_servers),
        )
        assert done.exit_code == 0, done.output

    def topic(self, table: str) -> str:
        return f"{self.name}.{schema_of(self._database)}.{table}"

    def changes(self, table: str, count: int) -> list[dict[str, Any]]:
        """Return at least `count` changes of a table, as messages would have their values."""
        topic = self.topic(table)

        def look() -> list[dict[str, Any]]:
            try:
                records = read_all(self._bootstrap_servers, [topic])
            except KafkaFailure:
                return []  # Kafka Connect makes the topic with the first change
            found = [_change(each.value) for each in records if each.value is not None]
            return found if len(found) >= count else []

        found: list[dict[str, Any]] = until(
            f"{count} changes in {topic}", look, within_s=SEEN_S_MAX, every_s=0.3
        )
        return found


def _change(value: bytes) -> dict[str, Any]:
    change: dict[str, Any] = json.loads(json_of(decoded(value, lambda _number: None)))
    return change
