"""One Kafka process that is started, killed, paused and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge.testkit.properties import NodeAddress, render
from halfbridge.testkit.ready import READY_S_MAX, NotReadyError, wait_ready

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.testkit.jars import BrokerJars
    from halfbridge.testkit.watchdog import Watchdog

STOP_S_MAX = 20.0  # then SIGKILL: a node of a cluster without quorum never ends by itself
_KILL_S_MAX = 20.0  # the kernel frees the memory of a JVM first; a busy machine is slow at it
_PAUSE_S_MAX = 10.0  # a thread on another core goes on until that core takes notice
_PAUSE_POLL_S = 0.002  # a pause of a broker is exact to this
_LOG_LINES = 30  # a screen
_BROKER_FLAGS = ("-XX:+ExitOnOutOfMemoryError", "-Xshare:auto", "-Djava.awt.headless=true")
# For a node that has the machine to itself. G1 by name: on two cores and little memory the JVM
# would take the serial collector. Kafka's own start script sets the same pause goal and occupancy.
FAST_FLAGS = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)
# For nodes that share one, for minutes: compiling them well is most of what they would do. Two of
# the fault cases on three nodes took 66 s of processor time with these, 93 s without (2 cores).
FRUGAL_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Formatting is class loading and one-time code: compile it cheaply.
_TOOL_FLAGS = (*FRUGAL_FLAGS, "-Xshare:auto")


class BrokerStartError(RuntimeError):
    """A broker did not start; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What all nodes of a cluster are started with.

    Attributes:
        java: The runtime.
        jars: The class path.
        cluster_id: In the base64 of Kafka.
        heap_mib: Java heap, at most.
        jvm_flags: How the JVM compiles and collects.
        archive_flags: What has it map the class data archive of `jars`; none without one.
    """

    java: Path
    jars: BrokerJars
    cluster_id: str
    heap_mib: int
    jvm_flags: tuple[str, ...]
    archive_flags: tuple[str, ...] = ()


class KafkaNode:
    """A broker that is its own controller, or one of its controllers. Not thread-safe.

    Made by `EmbeddedBroker` and `EmbeddedCluster`.
    """

    def __init__(
        self,
        address: NodeAddress,
        directory: Path,
        *,
        properties: Mapping[str, str],
        launch: Launch,
        watchdog: Watchdog,
    ) -> None:
        self.address = address
        self.directory = directory
        self._launch = launch
        self._watchdog = watchdog
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        directory.mkdir(parents=True, exist_ok=True)
        self._config = directory / "server.properties"
        self._config.write_text(render(properties), encoding="utf-8")

    @property
    def bootstrap_servers(self) -> str:
        """Return the address of this node alone."""
        return self.address.bootstrap

    @property
    def log_path(self) -> Path:
        """Return the broker's own log."""
        return self.directory / "server.log"

    @property
    def process_id(self) -> int | None:
        """Return the process id while the node runs."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """Tell whether the process is there; a paused one is."""
        return self._process is not None and self._process.poll() is None

    def spawn(self, *jvm_flags: str) -> None:
        """Start the process, formatting the storage first if it never was; do not wait.

        Args:
            jvm_flags: For the broker's JVM, this once.
        """
        if self.is_running:
            return
        launch = self._launch
        java = [str(launch.java), f"-Dhalfbridge.log={self.log_path}", launch.jars.log_option]
        java += launch.archive_flags
        heap = f"{launch.heap_mib}m"
        half_heap = f"{launch.heap_mib // 2}m"
        commands = [
            [
                *(*java, f"-Xms{half_heap}", f"-Xmx{heap}", *_BROKER_FLAGS, *launch.jvm_flags),
                *(*jvm_flags, "kafka.Kafka", str(self._config)),
            ]
        ]
        if not (self.directory / "data" / "meta.properties").exists():
            tool = [*java, *_TOOL_FLAGS, "kafka.tools.StorageTool"]
            # In one word: an id may begin with a dash.
            what = f"--cluster-id={launch.cluster_id}", "--config", str(self._config)
            commands.insert(0, [*tool, "format", *what])
        with (self.directory / "stdout.log").open("ab") as output:
            self._process = self._watchdog.start(
                commands,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "CLASSPATH": launch.jars.class_path},
            )

    def use(self, jars: BrokerJars) -> None:
        """Have the next `spawn` run these jars, on the same data: an upgrade, or the way back."""
        self._launch = replace(self._launch, jars=jars, archive_flags=())

    def wait_ready(self, *, brokers_min: int = 1, timeout_s: float = READY_S_MAX) -> None:
        """Return when this node answers clients and knows `brokers_min` live brokers.

        Raises:
            BrokerStartError: it ended, or did not answer within `timeout_s`.
        """
        try:
            wait_ready(
                self.bootstrap_servers,
                brokers_min=brokers_min,
                timeout_s=timeout_s,
                check=self._raise_if_ended,
            )
        except NotReadyError as error:
            raise BrokerStartError(f"{error}\n{self.log_tail()}") from error

    def kill(self) -> None:
        """SIGKILL, as a power cut would do it; returns when the process is gone. Idempotent."""
        self._signal(signal.SIGKILL)
        self._reap(_KILL_S_MAX)

    def terminate(self) -> None:
        """End in order (SIGTERM), by force after `STOP_S_MAX` seconds. Idempotent."""
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._reap(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers. Returns when every thread stands.

        Raises:
            TimeoutError: the system does not stop the process in time.
        """
        self._signal(signal.SIGSTOP)
        self._paused = True
        deadline = time.monotonic() + _PAUSE_S_MAX
        while self._process is not None and not _stands(self._process.pid):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.address.bootstrap} does not stop, although it was told to (SIGSTOP)"
                )
            time.sleep(_PAUSE_POLL_S)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def restart(self, *, timeout_s: float = READY_S_MAX) -> None:
        """Start again on the same port and data, ending it in order first if it runs.

        Raises:
            BrokerStartError: as `wait_ready`.
        """
        self.terminate()
        self.spawn()
        self.wait_ready(timeout_s=timeout_s)

    def wait(self) -> int:
        """Wait until the process ends by itself and return its exit status."""
        return 0 if self._process is None else self._process.wait()

    def log_tail(self) -> str:
        """Return the last lines of the broker's log, and of what it printed."""
        tails = []
        for path in (self.log_path, self.directory / "stdout.log"):
            if path.is_file():
                with path.open(encoding="utf-8", errors="replace") as lines:
                    tails.append(f"--- {path.name}\n" + "".join(deque(lines, maxlen=_LOG_LINES)))
        return "\n".join(tails) or "it wrote no log"

    def _raise_if_ended(self) -> None:
        if not self.is_running:
            status = None if self._process is None else self._process.returncode
            raise BrokerStartError(
                f"the broker on {self.address.bootstrap} ended with status {status}\n"
                f"{self.log_tail()}"
            )

    def _signal(self, number: int) -> None:
        if self._process is not None and self.is_running:
            os.killpg(self._process.pid, number)

    def _reap(self, timeout_s: float) -> None:
        if self._process is not None:
            self._process.wait(timeout_s)
            self._watchdog.forget(self._process.pid)
            self._process = None
            self._paused = False


def _stands(process_id: int) -> bool:
    """Tell whether all threads of a process are stopped, or gone; True where nobody can say."""
    for task in Path(f"/proc/{process_id}/task").glob("*/stat"):
        try:
            state = task.read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has just ended
        if state not in "TtZX":
            return False
    return True
