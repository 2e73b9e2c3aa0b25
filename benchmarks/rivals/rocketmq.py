"""A real RocketMQ 5: name server and broker from its Maven jars, and its own Java client.

As its distribution's scripts start them, with smaller heaps; data and logs are in a directory that
is removed. Flushed asynchronously, which is its default, and what Kafka does too.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.rivals.workload import PIPELINED, WARM_MESSAGES, WARM_THREADS, Outcome, warm_up
from halfbridge.bench.load import lead_in
from halfbridge.bench.procfs import usage_of
from halfbridge.java.jvm import JavaSettings, find_java
from halfbridge.java.locked_jars import JarSettings, locked_jars
from halfbridge.testkit.ports import HOST, free_ports, is_free

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bench.load import BenchConfig
    from halfbridge.testkit.children import Child, Children

VERSION = "5.5.0"
_HERE = Path(__file__).parent
_START_S_MAX = 300.0  # 5 s; a JVM that others leave little time has been seen to take 100
_WORKLOAD_S_MAX = 600.0
_RATE_THREADS = 64  # its client blocks: this many senders keep a schedule of 2,000/s
# Options for Java 17 and later, from the distribution's runbroker.sh.
_OPENED = [
    *("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",),
    *("--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",),
    *(
        f"--add-opens=java.base/{name}=ALL-UNNAMED"
        for name in ("java.nio", "sun.nio.ch", "java.lang", "java.util", "jdk.internal.ref")
    ),
]
_BROKER = """
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1={host}
listenPort={port}
haListenPort={ha_port}
namesrvAddr={names}
autoCreateTopicEnable=true
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
storePathRootDir={store}
storePathCommitLog={store}/commitlog
"""


class RocketMq:
    """Name server, broker and client."""

    name = f"RocketMQ {VERSION}"

    def __init__(self, children: Children, directory: Path, say: Callable[[str], None]) -> None:
        self._children, self._directory, self._say = children, directory, say
        self._pipe = -1
        self._java = str(find_java(JavaSettings.from_environ(os.environ)).executable)
        settings = JarSettings.from_environ(os.environ)
        jars = locked_jars(_HERE / f"rocketmq-{VERSION}.lock", settings)
        self._class_path = os.pathsep.join(map(str, jars))
        self._answers = 0

    def start(self, config: BenchConfig) -> None:
        (self._directory / "rocketmq" / "conf").mkdir(parents=True)
        self._say("starting name server and broker")
        names = f"{HOST}:{self._start_names()}"
        self._broker = self._start_broker(names)
        self._client = self._start_client(names)
        self._say("warming up")
        line = f"0 {WARM_THREADS} {WARM_MESSAGES} 0 {config.size_bytes}"
        warm_up(lambda: self._ask(line))

    def close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)

    def run(self, name: str, config: BenchConfig) -> Outcome | None:
        """Return the figures of a workload; None: its client has no such mode."""
        if name == PIPELINED:
            return None
        lead = lead_in(config.rate)
        threads = config.threads or _RATE_THREADS
        before = self._cpu_s()
        words = (config.rate, threads, config.messages, lead, config.size_bytes)
        found = self._ask(" ".join(map(str, words)))
        used_us = (self._cpu_s() - before) * 1e6
        if found.pop("failed"):
            self._say(f"{name}: sends failed; see the output of the client")
        return Outcome(**found, cpu_us_per_tx=used_us / (config.messages + lead))

    def _cpu_s(self) -> float:
        return sum(usage_of(each.process.pid).cpu_s for each in (self._broker, self._client))

    def _start_names(self) -> int:
        (port,) = free_ports(1)
        config = self._directory / "names.conf"
        config.write_text(f"listenPort={port}\n")
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        self._boot("names", main, config, heap="512m")
        return port

    def _start_broker(self, names: str) -> Child:
        config = self._directory / "broker.conf"
        port = _broker_port()
        store = self._directory / "store"
        config.write_text(
            _BROKER.format(host=HOST, port=port, ha_port=port + 1, names=names, store=store)
        )
        return self._boot("broker", "org.apache.rocketmq.broker.BrokerStartup", config, heap="2g")

    def _boot(self, name: str, main: str, config: Path, *, heap: str) -> Child:
        words = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g"]
        child = self._start(name, *words, "-cp", self._class_path, main, "-c", str(config))
        self._children.wait_until(
            lambda: b"boot success" in child.output.read_bytes(),
            what=f"{name}: boot success",
            timeout_s=_START_S_MAX,
        )
        return child

    def _start(self, name: str, *words: str) -> Child:
        place = f"-Duser.home={self._directory}"
        environ = {**os.environ, "ROCKETMQ_HOME": str(self._directory / "rocketmq")}
        command = [self._java, place, *_OPENED, *words]
        return self._children.start(name, command, environ=environ)

    def _start_client(self, names: str) -> Child:
        # Workloads come through a named pipe: children have no standard input.
        pipe = self._directory / "workloads"
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDWR)  # both, so as not to wait for the reader
        heap = ("-Xms512m", "-Xmx1g", "-XX:+UseG1GC")
        main = [*heap, "-cp", self._class_path, str(_HERE / "Rocket.java"), names, str(pipe)]
        client = self._start("rocket-client", *main)
        self._await_answer(client, _START_S_MAX)
        return client

    def _ask(self, line: str) -> dict[str, Any]:
        os.write(self._pipe, f"{line}\n".encode())
        return self._await_answer(self._client, _WORKLOAD_S_MAX)

    def _await_answer(self, client: Child, timeout_s: float) -> dict[str, Any]:
        """Return the next line of JSON of the client."""
        self._answers += 1

        def lines() -> list[bytes]:
            return [
                line
                for line in client.output.read_bytes().splitlines(keepends=True)
                if line.startswith(b"{") and line.endswith(b"\n")
            ]

        self._children.wait_until(
            lambda: len(lines()) >= self._answers, what="RocketMQ's client", timeout_s=timeout_s
        )
        found: dict[str, Any] = json.loads(lines()[self._answers - 1])
        return found


def _broker_port() -> int:
    """Return a port whose neighbours are free too: a broker listens on three."""
    deadline = time.monotonic() + _START_S_MAX
    while time.monotonic() < deadline:
        (port,) = free_ports(1)
        if is_free(port - 2) and is_free(port + 1):
            return port
    raise OSError("no three free ports")
