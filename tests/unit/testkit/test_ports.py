"""Ports are free, different, and never a client's own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

from halfbridge.testkit.ports import HOST, free_ports, is_free

EPHEMERAL_MIN = 32_768
# Draws ports, forks, and draws ports in the child too; prints the two lists.
_DRAW = """
import json, os
from halfbridge.testkit.ports import free_ports
mine = free_ports(180)
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
print(json.dumps(mine if pid else free_ports(180)), flush=True)
os._exit(0)
"""


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


def test_a_broker_that_is_down_keeps_its_ports() -> None:
    """What a process was given, no other process is given, nor the same process soon after.

    A broker that is killed and started again listens on its ports again. Nobody listens there in
    between, so that `is_free` says nothing: a broker of other tests had been given such a port. A
    child that a fork made is another process.
    """
    first = free_ports(180)
    done = subprocess.run(
        [sys.executable, "-c", _DRAW], capture_output=True, check=True, text=True, timeout=60
    )
    others = [json.loads(line) for line in done.stdout.splitlines()]
    drawn = [*first, *free_ports(180), *others[0], *others[1]]
    assert len(set(drawn)) == len(drawn) == 4 * 180
