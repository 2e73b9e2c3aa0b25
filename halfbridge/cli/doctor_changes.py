"""What `halfbridge doctor` asks Kafka Connect and PostgreSQL about the relay of changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from halfbridge.checker.admin.doctor.facts import Changes, Connector, Slot
from halfbridge.cli.database import opened
from halfbridge.kafka.errors import BridgeError

if TYPE_CHECKING:
    from sqlalchemy import URL

    from halfbridge.checker.admin.doctor.questions import Questions
    from halfbridge.connect.rest import ConnectRest

CHANGES_URL_VARIABLE = "HALFBRIDGE_CHANGES_URL"
# Stopped connectors, and slots with most log, of which more would only repeat the finding.
CONNECTORS_MAX, SLOTS_MAX = 100, 100
_CONNECTORS, _SLOTS = "Kafka Connect", "replication slots"
# A slot of another database on the server belongs to somebody else. A standby has no current
# position, but slots of its own from PostgreSQL 16 on.
_SLOTS_SQL = f"""
SELECT slot_name, active, wal_status = 'lost' AS is_lost,
  pg_wal_lsn_diff(
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END,
    restart_lsn
  ) AS kept_bytes
FROM pg_replication_slots
WHERE slot_type = 'logical' AND NOT temporary AND database = current_database()
ORDER BY kept_bytes DESC NULLS FIRST, slot_name
LIMIT {SLOTS_MAX}
"""  # noqa: S608  (a constant)


def ask_changes(
    questions: Questions, connect_url: str, changes_url: str, *, timeout_s: float
) -> str:
    """Begin to ask those of both that are given; return the database's address for psql.

    Args:
        questions: Where answers are kept.
        connect_url: Address of Kafka Connect; empty: it is not asked.
        changes_url: SQLAlchemy URL of a database; empty: it is not asked.
        timeout_s: For a call of Kafka Connect.

    Raises:
        BadParameter: an address is wrong, or the database is not PostgreSQL.
        ClickException: The extra `sql` is not installed.
        ConfigError: The URL is wrong, or its driver is not installed.
    """
    from halfbridge.connect.rest import ConnectError, ConnectRest

    if connect_url:
        try:
            rest = ConnectRest(connect_url, call_s=timeout_s)
        except ConnectError as error:
            raise click.BadParameter(str(error), param_hint="--connect-url") from error
        questions.ask(_CONNECTORS, partial(_stopped, rest))
    if not changes_url:
        return ""
    with opened(changes_url, option="--changes-url") as engine:  # not connected
        url = engine.url
    if url.get_backend_name() != "postgresql":
        why = "only PostgreSQL has replication slots; give the URL of such a database"
        raise click.BadParameter(why, param_hint="--changes-url")
    questions.ask(_SLOTS, partial(_slots, changes_url))
    return _for_psql(url)


def changes_of(questions: Questions, connect_url: str, database: str) -> Changes:
    """Return what was answered; that Kafka Connect is silent is a fact, and taken from there."""
    return Changes(
        connect_url=connect_url.rstrip("/"),
        connect_silent=questions.silent.pop(_CONNECTORS, ""),
        connectors=questions.answer(_CONNECTORS, ()),
        database=database,
        slots=questions.answer(_SLOTS, ()),
    )


def _stopped(rest: ConnectRest) -> tuple[Connector, ...]:
    from halfbridge.connect.rest import ConnectError

    try:
        states = rest.states()
    except ConnectError as error:
        raise BridgeError(str(error)) from error
    stopped = (each for each in states if not each.is_running)
    return tuple(Connector(each.name, each.state, each.tasks, each.trace) for each in stopped)[
        :CONNECTORS_MAX
    ]


def _slots(url: str) -> tuple[Slot, ...]:
    from sqlalchemy import text

    try:
        with opened(url, option="--changes-url") as engine, engine.connect() as connection:
            rows = connection.execute(text(_SLOTS_SQL)).all()
    except click.ClickException as error:
        raise BridgeError(error.message) from error
    return tuple(
        Slot(
            each.slot_name,
            each.active,
            -1 if each.kept_bytes is None else int(each.kept_bytes),
            bool(each.is_lost),
        )
        for each in rows
    )


def _for_psql(url: URL) -> str:
    """Return libpq's connection string, without the password."""
    parts = {
        "host": url.host or url.query.get("host"),
        "port": url.port,
        "dbname": url.database,
        "user": url.username,
    }
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in parts.items() if value)


def _quoted(value: str) -> str:
    if value and not set(value) & set(" '\\"):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
