"""Operators' commands where no broker answers: each says so soon, with the address."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from time import monotonic

import pytest
from click.testing import CliRunner

from halfbridge.checker.admin import cluster
from halfbridge.checker.admin.doctor import gather
from halfbridge.cli import cli
from halfbridge.testkit.ports import HOST
from tests.kit.sockets import Server

ID = "0199f0c0a5c87a0b8f3e2d1c0b9a8801"
WHY = ("--reason", "test", "--yes")
COMMANDS = {
    "tx list": (),
    "tx find": ("--key", "order-42"),
    "tx show": (ID,),
    "tx explain": (ID,),
    "tx commit": (ID, "--messages", "1", *WHY),
    "tx rollback": (ID, *WHY),
    "groups list": (),
    "groups show": ("order-service",),
    "dead list": (),
    "dead show": (ID,),
    "dead resume": ("--all", *WHY),
    "dead redeliver": ("--all", *WHY),
    "dead export": (),
    "dead purge": WHY,
    "topics check": (),
    "topics create": (),
    "topics create orders": ("--type", "transaction"),
    "transactions show": (),
    "transactions reject": ("--reason", "test"),
    "transactions accept": ("--reason", "test"),
    "audit-log list": (),
    "checker init": ("--partition", "0"),
}
# What a command may take beside the wait for a first answer. Each other wait is 8 s or more.
BESIDE_S = 6.0
WAIT_S = 0.3


def _read(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


@pytest.fixture(params=["closed", "silent"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A port that refuses connections, and one that accepts them and answers nothing."""
    if request.param == "silent":
        with closing(Server(_read)) as server:
            yield f"{HOST}:{server.port}"
        return
    with socket.socket() as bound:  # bound and not listening: nobody else gets the port
        bound.bind((HOST, 0))
        yield f"{HOST}:{bound.getsockname()[1]}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_that_no_broker_answers(
    command: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the address and what to do, after one wait for a first answer."""
    monkeypatch.setattr(cluster, "FIRST_ANSWER_S", WAIT_S)
    words = [*command.split(), *COMMANDS[command], "--bootstrap-servers", address]
    began = monotonic()

    done = CliRunner().invoke(cli, words)

    assert monotonic() - began < WAIT_S + BESIDE_S
    assert done.exit_code == 1, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"halfbridge: no broker answers at {address} within 0.3 s")
    assert line.endswith("check that the brokers run, and --bootstrap-servers and --kafka")
    assert ("Connection refused" in line) is _refuses(address)


def _refuses(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return bool(probe.connect_ex((host, int(port))))


def test_doctor_says_that_no_broker_answers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the finding `unreachable`, and asks nothing else."""
    monkeypatch.setattr(gather, "FIRST_ANSWER_S", WAIT_S)
    began = monotonic()

    done = CliRunner().invoke(cli, ["doctor", "--bootstrap-servers", address])

    assert monotonic() - began < WAIT_S + BESIDE_S
    assert f"unreachable: no Kafka broker answers at {address}" in done.stdout
    assert ("Connection refused" in done.stdout) is _refuses(address)


def test_the_wait_for_a_first_answer_is_short() -> None:
    """With the start of the interpreter it is less than 5 s."""
    assert cluster.FIRST_ANSWER_S <= 3.0
