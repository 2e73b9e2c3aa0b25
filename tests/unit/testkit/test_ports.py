"""Ports are free, different, and never a client's own."""

from __future__ import annotations

import socket

from halfbridge.testkit.ports import HOST, free_ports, is_free

EPHEMERAL_MIN = 32_768


def test_different_and_below_the_ephemeral_range() -> None:
    """A client that reconnects to a dead broker can never be given the broker's port."""
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < EPHEMERAL_MIN


def test_a_port_in_use_is_not_free() -> None:
    """A listening server is seen."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)
