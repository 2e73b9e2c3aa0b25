"""The example that docs/how-to/seal-payloads.md shows, as it stands there."""

from pathlib import Path

import pytest

from tests.kit.page_project import run_project

pytestmark = pytest.mark.feature

PAGE = Path(__file__).parents[1].joinpath("docs", "how-to", "seal-payloads.md").read_text("utf-8")


def test_the_example_passes_as_it_stands(tmp_path: Path) -> None:
    """A service that seals its values, and its tests, in a project of its own."""
    assert "2 passed" in run_project(PAGE, ["sealing.py", "test_sealing.py"], tmp_path)
