"""Databases of a test's own, and the engines that a test opens on them."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock
from typing import Any, ClassVar

import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import PoolResetState

from tests.kit.proxy_tcp import TcpProxy
from tests.sql.servers import MariaDbServer, MySqlServer, PostgresServer, Server, Template

KINDS = {each.name: each for each in (PostgresServer, MariaDbServer, MySqlServer)}
# The asyncio drivers of each database.
ASYNC_DRIVERS = {
    "sqlite": ("sqlite+aiosqlite",),
    "postgresql": ("postgresql+asyncpg", "postgresql+psycopg"),
    "mariadb": ("mariadb+asyncmy",),
    "mysql": ("mysql+asyncmy",),
}
# For one test of each feature: on MySQL it is part of `make test-all`, and not `long`.
WITH_MYSQL = pytest.mark.parametrize(
    "database",
    ["sqlite", "postgresql", "mariadb", pytest.param("mysql", marks=pytest.mark.more)],
    indirect=True,
)


class Database:
    """An empty database.

    Attributes:
        name: SQLAlchemy's name of the dialect: sqlite, postgresql, mariadb or mysql.
        url: SQLAlchemy's address, without a password, for a user who owns this database only and
            may read the server's log.
        admin_url: The same for an administrator.
    """

    def __init__(self, name: str, url: str, admin_url: str) -> None:
        self.name = name
        self.url = url
        self.admin_url = admin_url
        self._engines: list[Engine] = []

    def engine(self, **options: Any) -> Engine:
        """Return a new engine; the fixture disposes of it. `options` go to `create_engine`."""
        return self._opened(self.url, options)

    def admin_engine(self, **options: Any) -> Engine:
        """Return a new engine of an administrator."""
        return self._opened(self.admin_url, options)

    def close(self) -> None:
        """Dispose of all engines."""
        for engine in self._engines:
            with suppress(DBAPIError):  # its server may be dead
                engine.dispose()

    def _opened(self, url: str, options: dict[str, Any]) -> Engine:
        engine = create_engine(url, **options)
        self._engines.append(engine)
        return engine


class ProxiedDatabase(Database):
    """A database behind a proxy: `url` leads through the proxy, `admin_url` past it.

    Attributes:
        proxy: Cuts connections; delays, loses and refuses messages.
        commit_text: A text that only the message with COMMIT contains.
    """

    # psycopg may send BEGIN ISOLATION LEVEL READ COMMITTED; a text ends with a zero. PyMySQL first
    # sends SET AUTOCOMMIT; 3 is the command "query", before its text.
    _COMMIT_TEXTS: ClassVar = {
        "postgresql": "COMMIT\x00",
        "mariadb": "\x03COMMIT",
        "mysql": "\x03COMMIT",
    }

    def __init__(self, direct: Database) -> None:
        url = make_url(direct.url)
        assert url.port is not None
        self.proxy = TcpProxy(url.port)
        self.commit_text: str = self._COMMIT_TEXTS[direct.name]
        through = url.set(port=self.proxy.port)
        if direct.name == "mysql":  # PyMySQL encrypts where it can, and the proxy reads no TLS
            through = through.update_query_dict({"ssl_disabled": "true"})
        super().__init__(direct.name, through.render_as_string(), direct.admin_url)


class OwnDatabase(Database):
    """The only database of a server that no other test uses, and whose commits are durable."""

    def __init__(self, server: Server) -> None:
        database = server.create_database()
        super().__init__(server.name, server.url(database), server.url(database, user=server.admin))
        self.server = server

    @property
    def port(self) -> int:
        """Return the server's port on the loopback interface; a restart keeps it."""
        return self.server.port

    def kill(self) -> None:
        """SIGKILL the whole server, as a power cut would; the data stays. Idempotent."""
        self.server.kill()

    def restart(self) -> None:
        """Start the server again on the same port and data; shut it down first if it runs."""
        self.server.restart()


def sqlite_database(directory: Path) -> Database:
    """Return a database in a file that its first connection makes."""
    url = f"sqlite:///{directory / 'database.sqlite'}"
    return Database("sqlite", url, url)


def shared_database(server: Server) -> Database:
    """Return a new database of a server; the caller drops it."""
    database = server.create_database()
    return Database(server.name, server.url(database), server.url(database, user=server.admin))


@contextmanager
def killed_at_return(engine: Engine, database: Database) -> Iterator[Event]:
    """Have MariaDB or MySQL kill one connection that returns to the pool without a rollback.

    Yields:
        An event that is set when the connection is killed.
    """
    is_killed, lock = Event(), Lock()
    with database.admin_engine().connect() as admin:

        @event.listens_for(engine, "reset")
        def kill(connection: Any, _record: Any, state: PoolResetState) -> None:
            with lock:
                if state.transaction_was_reset and not is_killed.is_set():
                    admin.execute(text(f"KILL {connection.thread_id()}"))
                    is_killed.set()

        try:
            yield is_killed
        finally:
            event.remove(engine, "reset", kill)


@contextmanager
def durable_database(name: str, directory: Path) -> Iterator[Database]:
    """Yield a durable database of a test's own; on a server, an OwnDatabase that may be killed."""
    if name == "sqlite":
        with closing(sqlite_database(directory)) as made:
            yield made
        return
    kind = KINDS[name]
    with (
        closing(Template(kind)) as template,
        kind(template, durable=True) as server,
        closing(OwnDatabase(server)) as made,
    ):
        yield made
