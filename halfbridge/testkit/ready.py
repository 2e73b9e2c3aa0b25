"""Waits until a cluster answers a real client call."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import KafkaFailure

if TYPE_CHECKING:
    from collections.abc import Callable

# A start takes 2 s on an idle machine; 100 s were seen on a busy one. A JVM that ends is noticed at
# once: this limit is for one that hangs.
READY_S_MAX = 240.0
_POLL_S = 0.03  # tests wait for it: a hundredth of a start
_CALL_S_MAX = 2.0  # one request, before it is retried


class NotReadyError(RuntimeError):
    """The cluster did not answer in time, or died during the wait."""


def wait_ready(
    bootstrap_servers: str,
    *,
    brokers_min: int = 1,
    timeout_s: float = READY_S_MAX,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Return when the cluster answers and names at least `brokers_min` live brokers.

    `check` is called before each try, and raises when waiting has become pointless.

    Raises:
        NotReadyError: not within `timeout_s`; the operator of the cluster must act.
    """
    deadline = time.monotonic() + timeout_s
    _wait_listening(bootstrap_servers, deadline, check)
    admin = system_ports().kafka.admin(
        {
            "bootstrap.servers": bootstrap_servers,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,  # connections are refused until it listens
        }
    )
    while True:
        check()
        try:
            if admin.broker_count(_CALL_S_MAX) >= brokers_min:
                return
        except KafkaFailure as failure:
            cause = str(failure)
        else:
            cause = f"fewer than {brokers_min} live brokers"
        if time.monotonic() > deadline:
            raise NotReadyError(
                f"{bootstrap_servers} is not ready after {timeout_s:.0f} s: {cause}"
            )
        time.sleep(_POLL_S)


def _wait_listening(bootstrap_servers: str, deadline: float, check: Callable[[], None]) -> None:
    """Wait until the first server listens: a client created earlier would back off from it."""
    host, _, port = bootstrap_servers.split(",", 1)[0].rpartition(":")
    address = (host.rpartition("//")[2].strip("[]"), int(port))
    while True:
        check()
        try:
            socket.create_connection(address, timeout=_CALL_S_MAX).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise NotReadyError(f"nothing listens on {bootstrap_servers}: {error}") from error
            time.sleep(_POLL_S)
        else:
            return
