"""Database servers of the tests' own, on the loopback interface.

Each runs as an unprivileged user, keeps its data in a temporary directory, and ends with this
process, however this process ends (halfbridge.testkit.watchdog).
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from typing_extensions import Self

from halfbridge.testkit.ports import HOST, free_ports
from halfbridge.testkit.watchdog import Watchdog
from tests.sql.processes import ServerError, as_unprivileged, kill_working_in, new_directory, run
from tests.tools import tool

_READY_S_MAX = 60.0  # takes 0.2 s; longer after a kill, when the log is replayed
_STOP_S_MAX = 30.0
_KILL_S_MAX = 10.0
_CONNECT_S_MAX = 5
_POLL_S = 0.02
_STARTS_MAX = 3  # another process may take the free port first
_LOG_LINES = 20
_USER = "service"  # of the databases: an ordinary user, as a service has, that may read the log
_PLACES = ("usr/lib/postgresql/*/bin", "usr/sbin")  # Debian's, which are not on every PATH


class Template:
    """An empty data directory as the server's own installer makes it; servers begin with a copy.

    Args:
        kind: The class of the servers.
    """

    def __init__(self, kind: type[Server]) -> None:
        self._directory = new_directory()
        self._watchdog = Watchdog(self._directory)
        self._data = self._directory / "data"
        try:
            kind.initialise(self._data)
        except BaseException:  # the programs may be missing, and tests skipped for it
            self.close()
            raise

    def copy(self, to: Path) -> None:
        """Make `to` a copy that its server's user owns."""
        subprocess.run(["cp", "-a", str(self._data), str(to)], check=True)

    def close(self) -> None:
        """Remove it. Idempotent."""
        self._watchdog.close()


class Server(ABC):
    """One server. A context manager; not thread-safe.

    Args:
        template: Its first data.
        durable: Commits survive a power cut; False saves that time, and SIGKILL still loses
            nothing, as the kernel has what was written.
        options: Further arguments of its command line.
    """

    name: ClassVar[str]  # SQLAlchemy's name of the dialect
    driver: ClassVar[str]
    admin: ClassVar[str]  # the superuser
    stop_signal: ClassVar[signal.Signals]  # shuts it down, even with open connections

    def __init__(self, template: Template, *, durable: bool, options: tuple[str, ...] = ()) -> None:
        self._durable = durable
        self._options = options
        self._directory = new_directory()
        self._watchdog = Watchdog(self._directory)
        self.data = self._directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        template.copy(self.data)

    @staticmethod
    @abstractmethod
    def initialise(data: Path) -> None:
        """Make an empty data directory, durable or not."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def _place(self, connection: Connection) -> str:
        """Return the data directory of the server that answers."""

    @abstractmethod
    def _make_user(self, connection: Connection) -> None:
        """Make the ordinary user, who may subscribe to the log."""

    @abstractmethod
    def _make(self, connection: Connection, database: str) -> None:
        """Make a database in which the ordinary user has all rights."""

    @abstractmethod
    def _drop(self, connection: Connection, database: str) -> None:
        """Drop a database, even while connections use it."""

    def start(self) -> Self:
        """Start on a free port; returns when a client gets an answer.

        Raises:
            ServerError: with the last lines of its log; nothing is left behind.
        """
        try:
            self._start()
            with self.administrator() as connection:
                self._make_user(connection)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut down, and remove the data. Idempotent."""
        try:
            self._terminate()
        finally:
            self._watchdog.close()

    def kill(self) -> None:
        """SIGKILL all its processes, as a power cut would; the data stays. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_KILL_S_MAX)
        self._watchdog.forget(process.pid)
        kill_working_in(self.data)

    def restart(self) -> None:
        """Start again on the same port and data; shut the server down first if it runs.

        Raises:
            ServerError: with the last lines of its log.
        """
        self._terminate()
        self._spawn()
        self._wait_ready()

    def create_database(self) -> str:
        """Make an empty database and return its name."""
        database = f"t_{secrets.token_hex(4)}"
        with self.administrator() as connection:
            self._make(connection, database)
        return database

    def drop_database(self, database: str) -> None:
        """Drop a database with all that uses it: connections, slots of the log."""
        with self.administrator() as connection:
            self._drop(connection, database)

    def url(self, database: str | None = None, *, user: str = _USER) -> str:
        """Return SQLAlchemy's address of a database for a user, neither of them with a password."""
        drivername = f"{self.name}+{self.driver}"
        made = URL.create(drivername, user, host=HOST, port=self.port, database=database)
        return made.render_as_string()

    @contextmanager
    def administrator(self, database: str | None = None) -> Iterator[Connection]:
        """Yield a connection of the superuser; each statement is committed at once."""
        engine = create_engine(
            self.url(database, user=self.admin),
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={"connect_timeout": _CONNECT_S_MAX},
        )
        with engine.connect() as connection:
            yield connection

    def log_tail(self) -> str:
        """Return the last lines that it wrote."""
        with suppress(FileNotFoundError):
            lines = self._log.read_text("utf-8", "replace").splitlines()
            return "\n".join(lines[-_LOG_LINES:])
        return "it wrote no log"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _start(self) -> None:
        for last in (False,) * (_STARTS_MAX - 1) + (True,):
            (self.port,) = free_ports(1)
            self._spawn()
            try:
                return self._wait_ready()
            except ServerError:
                if last or self._process is None or self._process.poll() is None:
                    raise
        return None

    def _spawn(self) -> None:
        with self._log.open("ab") as log:
            self._process = self._watchdog.start(
                [[*self._command(), *self._options]],
                stdout=log,
                stderr=subprocess.STDOUT,
                **as_unprivileged(Path(self._command()[0]), self._directory),
            )

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_S_MAX
        while not self._answers():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                word = "ended" if ended else f"is not ready after {_READY_S_MAX:g} s"
                raise ServerError(f"{self.name} on port {self.port} {word}\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        try:
            with self.administrator() as connection:
                # Not another server that took the port between free_ports() and the start.
                return Path(self._place(connection)) == self.data
        except DBAPIError:
            return False

    def _terminate(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(self.stop_signal)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S_MAX)
        self.kill()


class PostgresServer(Server):
    """PostgreSQL, with a log that can be decoded (wal_level=logical)."""

    name = "postgresql"
    driver = "psycopg"
    admin = "postgres"
    stop_signal = signal.SIGINT

    @staticmethod
    def initialise(data: Path) -> None:
        """Run initdb."""
        initdb = _program("postgres", "postgresql").with_name("initdb")
        run(
            [
                *(str(initdb), "--pgdata", str(data), "--username=postgres", "--auth=trust"),
                *("--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            ],
            directory=data.parent,
        )

    def _command(self) -> list[str]:
        switch = "on" if self._durable else "off"
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": switch,
            "full_page_writes": switch,
            "wal_level": "logical",
            "max_replication_slots": 20,
            "max_wal_senders": 20,
            "shared_buffers": "64MB",
            "timezone": "GMT",
            "log_timezone": "GMT",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(_program("postgres", "postgresql")), "-D", str(self.data), *options]

    def _place(self, connection: Connection) -> str:
        return str(connection.scalar(text("SHOW data_directory")))

    def _make_user(self, connection: Connection) -> None:
        connection.execute(text(f"CREATE ROLE {_USER} LOGIN REPLICATION"))

    def _make(self, connection: Connection, database: str) -> None:
        connection.execute(text(f"CREATE DATABASE {database} OWNER {_USER}"))

    def _drop(self, connection: Connection, database: str) -> None:
        mine = {"database": database}
        active = "SELECT active_pid FROM pg_replication_slots WHERE database = :database"
        connection.execute(
            text(f"SELECT pg_terminate_backend(active_pid, 5000) FROM ({active}) s"), mine
        )
        slots = "SELECT slot_name FROM pg_replication_slots WHERE database = :database"
        connection.execute(
            text(f"SELECT pg_drop_replication_slot(slot_name) FROM ({slots}) s"), mine
        )
        connection.execute(text(f"DROP DATABASE {database} WITH (FORCE)"))


class MariaDbServer(Server):
    """MariaDB with InnoDB and a row-based binlog that names the columns."""

    name = "mariadb"
    driver = "pymysql"
    admin = "root"
    stop_signal = signal.SIGTERM

    @staticmethod
    def initialise(data: Path) -> None:
        """Make the system tables as mariadb-install-db does, without its help and sys tables.

        That script itself needs programs of two more packages.
        """
        program = _program("mariadbd", "mariadb-server")
        scripts = program.parents[1] / "share" / "mysql"
        names = ("system_tables", "performance_tables", "system_tables_data")
        statements = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n" + "".join(
            (scripts / f"mysql_{name}.sql").read_text("utf-8") for name in names
        )
        run(["mkdir", str(data)], directory=data.parent)
        run(
            [
                *(str(program), "--no-defaults", "--bootstrap", f"--basedir={program.parents[1]}"),
                *(f"--datadir={data}", "--enforce-storage-engine=", "--max-allowed-packet=8M"),
                *("--net-buffer-length=16K", "--innodb-flush-method=nosync"),
            ],
            directory=data.parent,
            statements=statements,
        )

    def _command(self) -> list[str]:
        program = _program("mariadbd", "mariadb-server")
        return [
            *(str(program), "--no-defaults", f"--basedir={program.parents[1]}"),
            *(f"--datadir={self.data}", f"--socket={self._directory / 'socket'}"),
            *(f"--port={self.port}", f"--bind-address={HOST}", "--skip-name-resolve"),
            *("--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL"),
            *("--server-id=1", "--character-set-server=utf8mb4"),
            f"--innodb-flush-method={'O_DIRECT' if self._durable else 'nosync'}",
            f"--sync-binlog={int(self._durable)}",
        ]

    def _place(self, connection: Connection) -> str:
        return str(connection.scalar(text("SELECT @@datadir")))

    def _make_user(self, connection: Connection) -> None:
        connection.execute(text(f"CREATE USER {_USER}@'{HOST}'"))
        rights = "REPLICATION SLAVE, BINLOG MONITOR, RELOAD"
        connection.execute(text(f"GRANT {rights} ON *.* TO {_USER}@'{HOST}'"))

    def _make(self, connection: Connection, database: str) -> None:
        connection.execute(text(f"CREATE DATABASE {database}"))
        connection.execute(text(f"GRANT ALL ON {database}.* TO {_USER}@'{HOST}'"))

    def _drop(self, connection: Connection, database: str) -> None:
        query = text("SELECT id FROM information_schema.processlist WHERE db = :database")
        for process in connection.scalars(query, {"database": database}).all():
            with suppress(DBAPIError):  # it has just ended
                connection.execute(text(f"KILL {process}"))
        connection.execute(text(f"DROP DATABASE {database}"))


class MySqlServer(MariaDbServer):
    """MySQL with InnoDB and a row-based binlog that names the columns."""

    name = "mysql"

    @staticmethod
    def initialise(data: Path) -> None:
        """Make the system tables, and an administrator who may connect by TCP."""
        administrator = data.parent / "administrator.sql"
        administrator.write_text(
            f"CREATE USER root@'{HOST}';\nGRANT ALL ON *.* TO root@'{HOST}' WITH GRANT OPTION;\n",
            "utf-8",
        )
        program = _program("mysqld-9", "mysql-server-core of the unstable suite")
        run(
            [
                *(str(program), "--no-defaults", "--initialize-insecure", f"--datadir={data}"),
                *(f"--init-file={administrator}", "--innodb-flush-method=nosync"),
            ],
            directory=data.parent,
        )

    def _command(self) -> list[str]:
        return [
            *(
                str(_program("mysqld-9", "mysql-server-core of the unstable suite")),
                "--no-defaults",
                f"--datadir={self.data}",
            ),
            *(f"--socket={self._directory / 'socket'}", "--mysqlx=OFF", "--secure-file-priv="),
            *("--performance-schema=OFF",),
            *(f"--port={self.port}", f"--bind-address={HOST}", "--skip-name-resolve"),
            *("--log-bin=binlog", "--binlog-row-metadata=FULL", "--server-id=1"),
            f"--innodb-flush-method={'O_DIRECT' if self._durable else 'nosync'}",
            f"--sync-binlog={int(self._durable)}",
        ]

    def _make_user(self, connection: Connection) -> None:
        connection.execute(text(f"CREATE USER {_USER}@'{HOST}'"))
        rights = "REPLICATION SLAVE, REPLICATION CLIENT, RELOAD"
        connection.execute(text(f"GRANT {rights} ON *.* TO {_USER}@'{HOST}'"))


def _program(name: str, package: str) -> Path:
    """Return the resolved path of a server's program, which is among the files that it needs."""
    return Path(tool(name, package=package, places=_PLACES)).resolve()
