"""Configurations of Debezium's connectors that lose no row, double none and falsify no value."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.connect.tables import DatabaseTableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import URL

    from halfbridge.connect.tables import Table

_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306}
_SERVER_IDS = 1_000_000_000  # a replica's number: few servers have one so high
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")  # a topic's name, with room for the table's
_SLOT_CHARS_MAX = 63  # PostgreSQL's names
_HEARTBEAT_MS = 10_000  # confirms the log of a quiet table while others are written
# Limits the rows that were read and are not written yet. Debezium itself counts rows only: 8,192
# rows of 0.9 MB would need 7 GB. A Java heap of 512 MiB has room for this and for a batch.
_QUEUE_BYTES_MAX = 64 << 20
_JSON = "org.apache.kafka.connect.json.JsonConverter"


@dataclass(frozen=True, slots=True)
class ConnectorPlan:
    """What a user chooses.

    Attributes:
        name: Of the connector, and first part of its topics: `NAME.SCHEMA.TABLE`.
        tables: As `find_tables` returns them.
        bootstrap_servers: Of Kafka, where MySQL's and MariaDB's connectors keep schemas.
        snapshot: The rows that are there at the start come first.
        schemas: Each record carries its schema, as MySQL's and MariaDB's always do.
        partitions: Of a topic that Kafka Connect makes.
        replication_factor: Of such a topic; -1: the broker's default.
    """

    name: str
    tables: Sequence[Table]
    password: str = ""
    bootstrap_servers: str = ""
    snapshot: bool = True
    schemas: bool = False
    partitions: int = 1
    replication_factor: int = -1


def connector_config(url: URL, dialect: str, plan: ConnectorPlan) -> dict[str, str]:
    """Return the configuration for `PUT /connectors/NAME/config`.

    `url` is where Kafka Connect reaches the database; `dialect` is what server answered:
    postgresql, mysql or mariadb.

    Raises:
        DatabaseTableError: a name that cannot be a topic's, or no address of Kafka; the user
            corrects it.
    """
    if not _NAME.fullmatch(plan.name):
        raise DatabaseTableError(f"--name {plan.name!r}: give letters, digits, '.', '_' and '-'")
    own = _postgresql(url, plan) if dialect == "postgresql" else _mysql(dialect, plan)
    return {
        "name": plan.name,
        "tasks.max": "1",
        # A record and the position after it are in one transaction of Kafka.
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
        "topic.prefix": plan.name,
        "database.hostname": url.host or "localhost",
        "database.port": str(url.port or _PORTS[dialect]),
        "database.user": url.username or "",
        **({"database.password": plan.password} if plan.password else {}),
        **own,
        "table.include.list": ",".join(_pattern(each) for each in plan.tables),
        "snapshot.mode": "initial" if plan.snapshot else "no_data",
        "decimal.handling.mode": "string",
        "binary.handling.mode": "base64",
        "event.processing.failure.handling.mode": "fail",
        "tombstones.on.delete": "false",
        "max.queue.size.in.bytes": str(_QUEUE_BYTES_MAX),
        "heartbeat.interval.ms": str(_HEARTBEAT_MS),
        "topic.creation.default.partitions": str(plan.partitions),
        "topic.creation.default.replication.factor": str(plan.replication_factor),
        **_converters(schemas=plan.schemas or dialect != "postgresql"),
    }


def _postgresql(url: URL, plan: ConnectorPlan) -> dict[str, str]:
    # A slot's name takes fewer characters than a connector's.
    slot = re.sub(r"[^a-z0-9_]", "_", plan.name.lower())
    if slot != plan.name or len(slot) > _SLOT_CHARS_MAX:
        digest = f"_{zlib.crc32(plan.name.encode()):08x}"
        slot = slot[: _SLOT_CHARS_MAX - len(digest)] + digest
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.dbname": url.database or url.username or "postgres",
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "slot.drop.on.stop": "false",
        "publication.name": slot,
        "publication.autocreate.mode": "filtered",
        # Rows of partitions, later ones too, come under the name of the partitioned table.
        "publish.via.partition.root": "true",
        "time.precision.mode": "isostring",
        "interval.handling.mode": "string",
        "hstore.handling.mode": "json",
        # Debezium writes a type that it does not know as bytes, instead of leaving it out.
        "include.unknown.datatypes": "true",
        **_only_own_rows([each for each in plan.tables if each.has_children]),
    }


def _only_own_rows(parents: Sequence[Table]) -> dict[str, str]:
    """Return the settings by which a snapshot reads no row of a child table as its parent's."""
    option = "snapshot.select.statement.overrides"
    if not parents:
        return {}
    selects = {}
    for each in parents:
        name = f"{_quoted(each.schema)}.{_quoted(each.name)}"
        selects[f"{option}.{each}"] = f"SELECT * FROM ONLY {name}"  # noqa: S608  (quoted)
    return {option: ",".join(map(str, parents)), **selects}


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _mysql(dialect: str, plan: ConnectorPlan) -> dict[str, str]:
    if not plan.bootstrap_servers:
        raise DatabaseTableError(
            "MySQL's and MariaDB's connectors keep the history of schemas in a topic: give"
            " --bootstrap-servers"
        )
    connector = "mariadb.MariaDb" if dialect == "mariadb" else "mysql.MySql"
    return {
        "connector.class": f"io.debezium.connector.{connector}Connector",
        "database.server.id": str(_SERVER_IDS + zlib.crc32(plan.name.encode()) % _SERVER_IDS),
        "database.include.list": ",".join(
            dict.fromkeys(re.escape(each.schema) for each in plan.tables)
        ),
        "schema.history.internal.kafka.bootstrap.servers": plan.bootstrap_servers,
        "schema.history.internal.kafka.topic": f"{plan.name}.schema-history",
        # Else a table of somebody else's, with a type that the parser does not know, stops it.
        "schema.history.internal.store.only.captured.tables.ddl": "true",
        "include.schema.changes": "false",
        # `isostring` would write a negative TIME, and one of more than a day, as null. So records
        # have numbers, and the schema that says what they mean.
        "time.precision.mode": "adaptive_time_microseconds",
        # Debezium's time adjuster would turn the years 1 to 99 into 1970 to 2069.
        "enable.time.adjuster": "false",
        # Above 2^63, `long` would write a negative number.
        "bigint.unsigned.handling.mode": "precise",
    }


def _pattern(table: Table) -> str:
    return rf"{re.escape(table.schema)}\.{re.escape(table.name)}"


def _converters(*, schemas: bool) -> dict[str, str]:
    switch = str(schemas).lower()
    return {
        "key.converter": _JSON,
        "key.converter.schemas.enable": switch,
        "key.converter.decimal.format": "NUMERIC",
        "key.converter.replace.null.with.default": "false",
        "value.converter": _JSON,
        "value.converter.schemas.enable": switch,
        "value.converter.decimal.format": "NUMERIC",
        # Else NULL in a column with a default comes as the default.
        "value.converter.replace.null.with.default": "false",
    }
