"""What a cluster refuses before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from halfbridge.testkit.broker import BrokerStartError, EmbeddedBroker, EmbeddedCluster
from halfbridge.testkit.ports import HOST


def test_one_port_a_node() -> None:
    """Fewer ports than nodes, or no node at all, is the caller's mistake."""
    with pytest.raises(ValueError, match="3 nodes with 1 ports"):
        EmbeddedCluster(3, ports=(9092,))
    with pytest.raises(ValueError, match="0 nodes"):
        EmbeddedCluster(0)


def test_not_started() -> None:
    """Asking for an address too early says what to do; stopping too early does nothing."""
    broker = EmbeddedBroker()
    with pytest.raises(RuntimeError, match=r"start\(\)"):
        _ = broker.bootstrap_servers
    broker.stop()


@pytest.mark.broker
def test_port_in_use(tmp_path: Path) -> None:
    """A port that was asked for and is taken is named at once, before any process starts."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(BrokerStartError, match=f"port {port} is in use"):
            EmbeddedBroker(tmp_path, port).start()
