"""What is said of the machine."""

import re

from benchmarks.machine import load, now, this_machine


def test_machine_and_time() -> None:
    """Every figure is told with what it depends on."""
    machine = this_machine()

    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert machine.cpu
    assert list(machine.to_json()) == ["cpu", "cores", "memory_gib", "system", "python"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", now())
    assert len(load()) == 3
