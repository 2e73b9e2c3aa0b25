"""What doctor finds of signatures, on brokers in memory: who does not sign, which key ends."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from halfbridge import Message, MessageView, Resolution
from halfbridge.checker.admin.doctor.facts import Severity, write_bundle
from halfbridge.checker.admin.doctor.logs import END_MS
from halfbridge.serde.signing_keys import MARGIN_MS, Role
from halfbridge.testkit.memory import MemoryStack
from tests.kit.signing import ROLES, a_key, a_table, write_key_file
from tests.unit.checker.admin.doctor.scene import facts_of, found_by

OLD, NEW = "old-service", "new-service"
HOUR_MS = 3_600_000


def commit(_: MessageView) -> Resolution:
    """Answer as a checker that finds every local transaction committed."""
    return Resolution.COMMIT


def unknown(_: MessageView) -> Resolution:
    """Answer as a checker that never knows."""
    return Resolution.UNKNOWN


def send(stack: MemoryStack, group: str, **settings: Any) -> None:
    """Have a client of a group commit one transaction."""
    with stack.producer(group, checker=commit, **settings) as producer, producer.begin() as tx:
        tx.send(Message("orders", value=b"v"))


def signing(tmp_path: Path, *, in_ms: int) -> MemoryStack:
    """Return an installation whose key file demands signatures `in_ms` after its first instant."""
    path = tmp_path / "keys.toml"
    write_key_file(path, a_table(demands=[]))
    with MemoryStack() as clock:
        now_ms = clock.machine.ports(clock.machine.process("clock")).clock.time_ms()
    demands = [{"groups": ["*"], "from_ms": now_ms + in_ms}]
    return MemoryStack(key_file=write_key_file(path, a_table(demands=demands)))


def test_clients_without_a_key_file_are_told_before_the_demand(tmp_path: Path) -> None:
    """By their group, with the time from which on nothing of them would be believed."""
    with signing(tmp_path, in_ms=HOUR_MS) as stack:
        stack.create_topic("orders")
        send(stack, OLD, key_file="")
        send(stack, NEW)
        (one,) = facts_of(stack).not_believed
        assert (one.producer_group, one.role, one.records) == (OLD, Role.CLIENT, 1)
        found = found_by(stack)["not-signed"]
        assert found.severity is Severity.WARNING
        assert f"producer group {OLD}: 1 half record of its clients would not be" in found.what
        assert str(stack.config.key_file) in found.mend


def test_a_demand_in_two_days_is_not_judged_yet(tmp_path: Path) -> None:
    """An operator may write it long before clients have their files."""
    with signing(tmp_path, in_ms=48 * HOUR_MS) as stack:
        stack.create_topic("orders")
        send(stack, OLD, key_file="")
        assert facts_of(stack).not_believed == ()


def test_records_that_are_not_believed_are_an_error(tmp_path: Path) -> None:
    """Since the demand holds, they are dead letters."""
    with signing(tmp_path, in_ms=-HOUR_MS) as stack:
        stack.create_topic("orders")
        send(stack, NEW)
        send(stack, OLD, key_file="")
        found = found_by(stack)["not-signed"]
        assert found.severity is Severity.ERROR
        assert OLD in found.what
        assert "unsigned" in found.what
        stack.advance(5)
        assert [each.producer_group for each in facts_of(stack).not_believed] == [OLD]


def test_a_client_that_has_its_file_since_is_no_finding(tmp_path: Path) -> None:
    """Of two clients of which one has no file, the other's records lie between: that is one."""
    with signing(tmp_path, in_ms=HOUR_MS) as stack:
        stack.create_topic("orders")
        send(stack, OLD, key_file="")
        stack.advance(MARGIN_MS / 1_000 + 1)
        send(stack, OLD)
        assert facts_of(stack).not_believed == ()
        send(stack, OLD, key_file="")
        send(stack, OLD)
        (one,) = facts_of(stack).not_believed
        assert one.records == 1


def test_copies_of_a_worker_without_a_key_file_are_the_workers(tmp_path: Path) -> None:
    """A copy is the daemon's record, whoever wrote the half message."""
    keys = write_key_file(tmp_path / "keys.toml", a_table())
    with MemoryStack() as stack:  # its worker has no key file
        stack.create_topic("orders")
        producer = stack.producer(OLD, checker=unknown, key_file=str(keys))
        with producer:
            producer.begin().send(Message("orders", value=b"v"))
            stack.advance(600)
        config = replace(stack.config, key_file=keys)
        found = facts_of(stack, config=config).not_believed
    assert {(each.producer_group, each.role) for each in found} == {(OLD, Role.DAEMON)}


def test_a_key_that_ends_and_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    """The one is a warning, the other an error: workers do not start with it."""
    with signing(tmp_path, in_ms=HOUR_MS) as stack:
        path = tmp_path / "keys.toml"
        now_ms = stack.machine.ports(stack.machine.process("clock")).clock.time_ms()
        ends = a_key("client", valid_until_ms=now_ms + END_MS)
        others = [a_key(role) for role in ROLES if role != "client"]
        write_key_file(path, a_table(ends, *others))
        found = found_by(stack)["keys"]
        assert found.severity is Severity.WARNING
        assert "key client-1 ends" in found.what
        path.write_text("no TOML", "utf-8")
        assert found_by(stack)["key-file"].severity is Severity.ERROR


def test_a_bundle_holds_no_secret(tmp_path: Path) -> None:
    """Facts about keys name them, and nothing of what they are."""
    with signing(tmp_path, in_ms=HOUR_MS) as stack:
        stack.create_topic("orders")
        send(stack, OLD, key_file="")
        bundle = tmp_path / "bundle.zip"
        write_bundle(bundle, facts_of(stack), (), stack.config, version="1")
    with zipfile.ZipFile(bundle) as opened:
        texts = [opened.read(name).decode() for name in opened.namelist()]
    assert any(OLD in text for text in texts)
    assert not any(a_key(role)["secret"] in text for text in texts for role in ROLES)
    assert json.loads(texts[1])["not_believed"]
