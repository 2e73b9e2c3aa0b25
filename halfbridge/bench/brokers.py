"""The brokers of a bench: given ones, or a broker that is started for it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.bench.procfs import listening_pid
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.jars import broker_jars
from halfbridge.testkit.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOCAL = (HOST, "localhost")


@dataclass(frozen=True, slots=True)
class Brokers:
    """Where brokers answer.

    Attributes:
        bootstrap_servers: Their addresses.
        pid: Process id of the only broker if it runs on this machine, else None.
    """

    bootstrap_servers: str
    pid: int | None


@contextmanager
def open_brokers(bootstrap_servers: str, *, say: Callable[[str], None]) -> Iterator[Brokers]:
    """Yield the given brokers; if none are given, a broker that ends with the block.

    Raises:
        BrokerStartError: The broker did not start; the last lines of its log are in the message.
        JarsError, JavaNotFoundError: The user must act.
    """
    if bootstrap_servers:
        yield Brokers(bootstrap_servers, _local_pid(bootstrap_servers))
        return
    broker_jars()  # may take minutes the first time; Ctrl-C interrupts it
    say("starting a real Kafka broker")
    with EmbeddedBroker() as broker:
        yield Brokers(broker.bootstrap_servers, broker.process_id)


def _local_pid(bootstrap_servers: str) -> int | None:
    """Return the process id of a single broker of this machine, else None."""
    if "," in bootstrap_servers:
        return None
    host, _, port = bootstrap_servers.rpartition(":")
    return listening_pid(int(port)) if host in _LOCAL and port.isdecimal() else None
