"""One real Kafka broker on this machine, for tests, the demo and `halfbridge broker start`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.testkit.cluster import EmbeddedCluster
from halfbridge.testkit.node import BrokerStartError, KafkaNode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typing_extensions import Self

__all__ = ["BrokerStartError", "EmbeddedBroker"]

_HEAP_MIB = 1024  # Kafka's own default (KAFKA_HEAP_OPTS)
_NODE_ID = 1


class EmbeddedBroker:
    """A broker that is its own controller (KRaft), ready in 3 to 5 s once its jars are cached.

    A context manager. Leaves no process behind and removes its temporary directory, however this
    process ends; but the first one of all makes a class data archive (`ClassArchive`), in a process
    that may outlive it for seconds. Not thread-safe.

    Args:
        directory: Keeps the data; a temporary one that `stop` removes when not given.
        port: For clients, on 127.0.0.1; 0 takes any free one.
        properties: Broker settings that win over ours.
        heap_mib: Java heap, at most.
        kafka_version: Instead of HALFBRIDGE_KAFKA_VERSION or the pinned one.
    """

    def __init__(
        self,
        directory: Path | None = None,
        port: int = 0,
        properties: Mapping[str, str] | None = None,
        *,
        heap_mib: int = _HEAP_MIB,
        kafka_version: str | None = None,
    ) -> None:
        self._cluster = EmbeddedCluster(
            1,
            directory=directory,
            properties=properties,
            ports=(port,),
            heap_mib=heap_mib,
            kafka_version=kafka_version,
        )

    @property
    def bootstrap_servers(self) -> str:
        """Return the broker's address; it stays the same over `kill` and `restart`."""
        return self.node.bootstrap_servers

    @property
    def directory(self) -> Path:
        """Return where data and logs are."""
        return self._cluster.directory

    @property
    def log_path(self) -> Path:
        """Return the broker's log."""
        return self.node.log_path

    @property
    def process_id(self) -> int | None:
        """Return the JVM's process id while it runs."""
        return self.node.process_id

    @property
    def node(self) -> KafkaNode:
        """Return the only node."""
        return self._cluster.node(_NODE_ID)

    def start(self) -> Self:
        """Start and return when a client gets an answer.

        Raises:
            BrokerStartError: with the last lines of the log; nothing is left behind.
            JarsError, JavaNotFoundError: the user must act.
        """
        self._cluster.start()
        return self

    def stop(self) -> None:
        """End for good; data in a temporary directory is removed with it. Idempotent."""
        self._cluster.stop()

    def kill(self) -> None:
        """SIGKILL; the data stays for `restart`. Idempotent."""
        self.node.kill()

    def restart(self) -> None:
        """Start again on the same port and data, ending it in order first if it runs."""
        self.node.restart()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self.node.pause()

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self.node.resume()

    def wait(self) -> int:
        """Wait until the broker ends by itself and return its exit status."""
        return self.node.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
