"""MariaDB and MySQL.

Sources: MariaDB Server documentation (SQL statements that cause an implicit commit, InnoDB system
variables, SAVEPOINT, mixed and statement-based binary logs); MySQL 9 Reference
Manual (INSERT, InnoDB locking).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from halfbridge.serde.units import MS_PER_S
from halfbridge.sql.dialects.base import CHECK_WAIT_MS, Database, autocommit_error
from halfbridge.sql.errors import NotDurableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection, Table


class MariaDB(Database):
    """MariaDB or MySQL with InnoDB.

    MySQL has no INSERT ... RETURNING (local_messages/writer.py) and never raises `_CHANGED_ROW`.
    Which of the two answers is known only once connected: the URL of a MariaDB may begin with
    "mysql" too.
    """

    name = "mariadb"
    # Not READ COMMITTED, at which the server refuses writes with binlog_format=STATEMENT. The
    # snapshot is taken by the first SELECT, which comes after the insert.
    own_isolation = "REPEATABLE READ"
    _DUPLICATE, _DEADLOCK, _NO_SAVEPOINT = 1062, 1213, 1305
    _LOCK_TIME_OUT, _CHANGED_ROW = 1205, 1020
    _OLDEST = (
        "SELECT trx_mysql_thread_id, trx_started FROM information_schema.innodb_trx"
        " WHERE trx_mysql_thread_id <> connection_id() ORDER BY trx_started LIMIT 1"
    )

    def check_commit(self, connection: Connection) -> None:
        """Refuse AUTOCOMMIT, and a server that loses commits when it is killed (flush mode 0).

        Raises as `Database.check_commit`; for NotDurableError an operator changes the flush mode.
        """
        query = text("SELECT @@autocommit, @@innodb_flush_log_at_trx_commit")
        autocommit, flush = connection.execute(query).one()
        if autocommit:
            raise autocommit_error()
        if flush == 0:
            raise NotDurableError(
                "innodb_flush_log_at_trx_commit is 0: a server that is killed loses the commits of"
                " the last second; set it to 1",
                setting="innodb_flush_log_at_trx_commit",
            )

    def is_autocommit(self, driver: Any) -> bool:
        """Return whether each statement commits by itself, where the driver can tell."""
        autocommit = getattr(driver, "get_autocommit", None)
        return autocommit is not None and bool(autocommit())

    def _is_untagged(self, error: Any) -> bool:
        return _number(error) == self._NO_SAVEPOINT

    @contextmanager
    def short_waits(self, connection: Connection) -> Iterator[None]:
        """Bound the waits for row locks and for metadata locks, whose default is a day."""
        names = ("innodb_lock_wait_timeout", "lock_wait_timeout")
        before = connection.execute(text("SELECT " + ", ".join(f"@@{n}" for n in names))).one()
        limit_s = CHECK_WAIT_MS // MS_PER_S
        _set(connection, dict.fromkeys(names, limit_s))
        try:
            yield
        finally:
            try:
                _set(connection, dict(zip(names, before, strict=True)))
            except BaseException:
                connection.invalidate()  # must not return to the pool with these settings
                raise

    def _is_rollback(self, error: Any) -> bool:
        return _number(error) == self._DEADLOCK  # also a Galera cluster's certification failure

    def is_held_up(self, error: DBAPIError) -> bool:
        """Return whether the error is a lock time-out, a deadlock or a changed row."""
        return _number(error.orig) in (self._LOCK_TIME_OUT, self._DEADLOCK, self._CHANGED_ROW)

    def others(self, connection: Connection, table: Table) -> str:
        """Return the oldest open transaction of the server; needs the privilege PROCESS."""
        del table  # the server does not show a table's locks without a plugin
        try:
            found = connection.execute(text(self._OLDEST)).one_or_none()
        except DBAPIError:
            return f"a user with PROCESS can see the oldest open transaction: {self._OLDEST}"
        if found is None:
            return "no other transaction is open now"
        return f"the oldest open transaction is of connection {found[0]}, since {found[1]}"

    def insert_if_absent(
        self, connection: Connection, table: Table, values: Mapping[str, object]
    ) -> bool:
        """Insert a row unless its key exists. INSERT IGNORE would hide other errors."""
        try:
            connection.execute(insert(table).values(**values))
        except IntegrityError as error:
            if _number(error.orig) == self._DUPLICATE:
                return False
            raise
        return True

    def engine_of(self, connection: Connection, table: Table) -> str:
        """Return the table's storage engine unless it is InnoDB."""
        query = text(
            "SELECT engine FROM information_schema.tables WHERE table_name = :name"
            " AND table_schema = COALESCE(:schema, DATABASE())"
        )
        found = connection.execute(query, {"name": table.name, "schema": table.schema}).scalar()
        return "" if found is None or found.lower() == "innodb" else str(found)

    def lossy_settings(self, connection: Connection) -> str:
        """Return the settings with which a crash of the machine may lose commits."""
        query = text("SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog")
        flush, has_binlog, sync = connection.execute(query).one()
        problems = [] if flush == 1 else [f"innodb_flush_log_at_trx_commit is {flush}, not 1"]
        if has_binlog and sync != 1:
            problems.append(f"sync_binlog is {sync}, not 1")
        return "; ".join(problems)


def _number(error: Any) -> int | None:
    arguments = getattr(error, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def _set(connection: Connection, values: Mapping[str, int]) -> None:
    assignments = ", ".join(f"SESSION {name} = {value}" for name, value in values.items())
    connection.execute(text(f"SET {assignments}"))
