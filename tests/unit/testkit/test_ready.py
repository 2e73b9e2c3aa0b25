"""Waiting for a cluster ends: in an answer, at the limit, or when waiting is pointless."""

from __future__ import annotations

import socket

import pytest

from halfbridge.testkit.ports import HOST, free_ports
from halfbridge.testkit.ready import NotReadyError, wait_ready


def test_nothing_listens() -> None:
    """The error comes at the limit and names the address."""
    (port,) = free_ports(1)
    with pytest.raises(NotReadyError, match=f"nothing listens on {HOST}:{port}"):
        wait_ready(f"{HOST}:{port}", timeout_s=0.1)


def test_something_else_listens() -> None:
    """A server that speaks no Kafka is not ready either."""
    with socket.create_server((HOST, 0)) as server:
        address = f"{HOST}:{server.getsockname()[1]}"
        with pytest.raises(NotReadyError, match=f"{address} is not ready"):
            wait_ready(address, timeout_s=0.1)


def test_check_ends_the_wait() -> None:
    """Whoever knows that the process died need not wait for the limit."""

    def died() -> None:
        raise RuntimeError("died")

    with pytest.raises(RuntimeError, match="died"):
        wait_ready(f"{HOST}:1", check=died)
