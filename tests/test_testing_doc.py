"""The project that docs/how-to/test.md and test-on-kafka.md show, as it stands there."""

import re
from pathlib import Path

import pytest

from halfbridge.testkit.memory import Step
from tests.kit.page_project import run_project

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"
PAGE = "".join((HOW_TO / name).read_text("utf-8") for name in ("test.md", "test-on-kafka.md"))


@pytest.mark.feature
def test_the_project_passes_as_it_stands(tmp_path: Path) -> None:
    """Every file of the pages, in a project of its own: one test for each step, and the other."""
    names = ["orders.py", "test_orders.py", "test_stacks.py"]
    said = run_project(PAGE, names, tmp_path)
    assert f"{len(Step) + 1} passed" in said
    assert "test_stacks.py::test_orders_arrive[memory]" in said


def test_the_table_has_every_step() -> None:
    """In the order in which code comes to them."""
    assert re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE) == [each.name for each in Step]
