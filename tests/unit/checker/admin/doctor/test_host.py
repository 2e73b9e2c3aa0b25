"""What is asked of this machine."""

from __future__ import annotations

from pathlib import Path

from halfbridge.checker.admin.doctor.facts import foreign_modules, host_facts, memory_bytes


def test_this_machine_answers() -> None:
    """Versions are told, and nothing stands in for the package."""
    told = host_facts()
    assert told.memory_bytes > 0
    assert told.foreign == {}
    assert all(told.kafka_client)


def test_a_control_group_limits_the_machines_memory(tmp_path: Path) -> None:
    """The least counts; `max` and a missing file are no limit."""
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "memory.max"
    assert memory_bytes(meminfo, cgroup) == 0
    meminfo.write_text("MemTotal:  1024 kB\nMemFree: 1 kB\n")
    assert memory_bytes(meminfo, cgroup) == 1 << 20
    cgroup.write_text("max\n")
    assert memory_bytes(meminfo, cgroup) == 1 << 20
    cgroup.write_text("4096\n")
    assert memory_bytes(meminfo, cgroup) == 4096


def test_rooms_that_come_from_elsewhere_are_named(tmp_path: Path) -> None:
    """As when a directory of the same name stands in front of the installed package."""
    assert set(foreign_modules(tmp_path)) == {
        "halfbridge.serde",
        "halfbridge.bridge",
        "halfbridge.checker",
    }
