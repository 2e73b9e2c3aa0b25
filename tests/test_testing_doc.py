"""The project that docs/testing.md shows, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from halfbridge.testkit.memory import Step

PAGE = Path(__file__).parents[1].joinpath("docs", "testing.md").read_text("utf-8")


def test_the_project_passes_as_it_stands(tmp_path: Path) -> None:
    """Every file of the page, in a project of its own: one test for each step, and the others."""
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in files] == [
        "orders.py",
        "test_orders.py",
        "test_every_crash.py",
        "test_stacks.py",
    ]
    for name, text in files:
        (tmp_path / name).write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-W", "error", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(Step) + 2} passed" in done.stdout
    assert "test_stacks.py::test_orders_arrive[memory]" in done.stdout


def test_the_table_has_every_step() -> None:
    """In the order in which code comes to them."""
    assert re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE) == [each.name for each in Step]
