"""One real Kafka Connect worker with Debezium's connectors on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge import environment
from halfbridge.connect.rest import ConnectRest, KafkaConnectError
from halfbridge.java.jvm import JavaSettings, find_java
from halfbridge.java.locked_jars import JarSettings
from halfbridge.testkit.broker import FRUGAL_FLAGS, STOP_S_MAX
from halfbridge.testkit.jars import connect_jars, connector_jars
from halfbridge.testkit.ports import HOST, free_ports, is_free
from halfbridge.testkit.ready import READY_S_MAX
from halfbridge.testkit.watchdog import Watchdog

if TYPE_CHECKING:
    from typing_extensions import Self

_HEAP_MIB = 512  # 210 MB are in use with one connector
_POLL_S = 0.1  # how late a worker that answers is seen; it starts in 12 s
_KILL_S_MAX = 20.0  # the kernel frees the memory of a JVM first
_LOG_LINES = 30  # a screen
_PROVIDERS = "org.apache.kafka.common.config.provider"


class ConnectStartError(RuntimeError):
    """Kafka Connect did not start; the message ends with the last lines of its log."""


class ConnectWorker:
    """A worker in distributed mode that writes source connectors' records exactly once.

    Configurations of connectors may refer to `${env:NAME}` and `${file:PATH:NAME}`. Its own topics
    have one replica. A context manager. Leaves no process behind, however this process ends. Not
    thread-safe.

    Args:
        bootstrap_servers: The Kafka cluster; it must support transactions.
        directory: Keeps configuration and log; a temporary one that `stop` removes when not given.
        port: Of the REST interface, on 127.0.0.1; 0 takes any free one.
        group_id: Of the workers that share connectors; its topics begin with it.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        directory: Path | None = None,
        port: int = 0,
        group_id: str = "connect",
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._directory = None if directory is None else directory.absolute()
        self._port = port
        self._group_id = group_id
        self._environ = environment.variables()  # of the JVM
        self._java_settings = JavaSettings.from_environ(self._environ)
        self._jar_settings = JarSettings.from_environ(self._environ)
        self._place: Path | None = None
        self._watchdog: Watchdog | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the address of the REST interface; it stays the same over `kill` and `restart`."""
        return f"http://{HOST}:{self._port}"

    @property
    def rest(self) -> ConnectRest:
        """Return a client of the REST interface."""
        return ConnectRest(self.url)

    @property
    def log_path(self) -> Path:
        """Return the worker's log. RuntimeError: not started; the test starts it."""
        if self._place is None:
            raise RuntimeError("not started: use it as a context manager or call start()")
        return self._place / "connect.log"

    @property
    def process_id(self) -> int | None:
        """Return the JVM's process id while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else None

    def start(self) -> Self:
        """Start and return when connectors can be created.

        Raises:
            ConnectStartError: nothing is left behind; the user acts on the last lines of the log,
                which are in the text.
            JarsError, JavaNotFoundError: the user must act.
        """
        if self._place is not None:
            return self
        if self._port and not is_free(self._port):
            raise ConnectStartError(f"port {self._port} is in use: give another one, or 0 for any")
        self._port = self._port or free_ports(1)[0]
        # Fetched before anything is created that `stop` must remove.
        connect_jars(self._jar_settings)
        connector_jars(self._jar_settings)
        temporary = self._directory is None
        self._place = self._directory or Path(tempfile.mkdtemp(prefix="halfbridge-connect-"))
        self._place.mkdir(parents=True, exist_ok=True)
        self._watchdog = Watchdog(self._place if temporary else None)
        try:
            self._spawn(self._place, self._watchdog)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut down cleanly (SIGTERM), and remove a temporary directory. Idempotent."""
        self._signal(signal.SIGTERM)
        if self._process is not None:
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._watchdog is not None:
            self._watchdog.close()
        self._process = self._watchdog = self._place = None

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone. Idempotent."""
        self._signal(signal.SIGKILL)
        process, self._process = self._process, None
        if process is not None and self._watchdog is not None:
            process.wait(_KILL_S_MAX)
            self._watchdog.forget(process.pid)

    def restart(self) -> None:
        """Kill it if it runs, and start it again on the same port.

        Raises as `start`, and RuntimeError: not started yet; the test starts it.
        """
        self.kill()
        if self._place is None or self._watchdog is None:
            raise RuntimeError("not started: use it as a context manager or call start()")
        self._spawn(self._place, self._watchdog)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _settings(self, place: Path) -> dict[str, str]:
        converter = "org.apache.kafka.connect.json.JsonConverter"
        own = {
            f"{topic}.storage.{name}": value
            for topic in ("config", "offset", "status")
            for name, value in (
                ("topic", f"{self._group_id}-{topic}"),
                ("replication.factor", "1"),
                ("partitions", "1"),
            )
            if (topic, name) != ("config", "partitions")  # always one
        }
        return {
            "bootstrap.servers": self._bootstrap_servers,
            "group.id": self._group_id,
            **own,
            "key.converter": converter,
            "value.converter": converter,
            "exactly.once.source.support": "enabled",
            "listeners": self.url,
            "plugin.path": str(_plugins(place, self._jar_settings)),
            "plugin.discovery": "service_load",  # there is no plugin without a manifest
            "config.providers": "env,file",
            "config.providers.env.class": f"{_PROVIDERS}.EnvVarConfigProvider",
            "config.providers.file.class": f"{_PROVIDERS}.FileConfigProvider",
            # A killed worker's session expires sooner, so its successor starts sooner.
            "session.timeout.ms": "10000",
            "scheduled.rebalance.max.delay.ms": "0",
        }

    def _spawn(self, place: Path, watchdog: Watchdog) -> None:
        java, jars = find_java(self._java_settings), connect_jars(self._jar_settings)
        config = place / "connect.properties"
        lines = (f"{name}={value}\n" for name, value in self._settings(place).items())
        config.write_text("".join(lines), "utf-8")
        command = [
            *(str(java.executable), f"-Dhalfbridge.log={self.log_path}", jars.log_option),
            *(f"-Xmx{_HEAP_MIB}m", "-XX:+ExitOnOutOfMemoryError", *FRUGAL_FLAGS),
            *("org.apache.kafka.connect.cli.ConnectDistributed", str(config)),
        ]
        with (place / "stdout.log").open("ab") as output:
            self._process = watchdog.start(
                [command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self._environ, "CLASSPATH": jars.class_path},
            )
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S_MAX
        while True:
            if self.process_id is None:
                raise ConnectStartError(f"Kafka Connect ended by itself\n{self._log_tail()}")
            try:
                if self.rest.is_ready():
                    return
            except KafkaConnectError:
                pass  # connections are refused until it listens
            if time.monotonic() > deadline:
                raise ConnectStartError(
                    f"Kafka Connect is not ready after {READY_S_MAX:.0f} s\n{self._log_tail()}"
                )
            time.sleep(_POLL_S)

    def _log_tail(self) -> str:
        path = self.log_path
        lines = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
        printed = (path.parent / "stdout.log").read_text("utf-8", "replace").splitlines()
        return "\n".join((lines + printed)[-_LOG_LINES:]) or "it wrote no log"

    def _signal(self, number: signal.Signals) -> None:
        if self.process_id is not None:
            os.killpg(self.process_id, number)


def _plugins(place: Path, settings: JarSettings) -> Path:
    """Return a directory with one directory of jars for each connector."""
    plugins = place / "plugins"
    for name, jars in connector_jars(settings).items():
        directory = plugins / name
        directory.mkdir(parents=True, exist_ok=True)
        for jar in jars:
            link = directory / jar.name
            link.unlink(missing_ok=True)
            link.symlink_to(jar)
    return plugins
