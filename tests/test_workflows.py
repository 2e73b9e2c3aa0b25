"""The workflows of .github: what they call exists, and nothing of theirs runs without a limit."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs of a workflow."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return found


def commands(path: Path) -> str:
    """Return what a workflow runs, one command a line."""
    steps = [step for job in jobs(path).values() for step in job["steps"]]
    return "\n".join(step.get("run", "") for step in steps)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_job_has_a_limit_and_reads_only(path: Path) -> None:
    """A run that hangs ends, and no step may write to the repository."""
    assert all(job["timeout-minutes"] < 360 for job in jobs(path).values())
    assert yaml.safe_load(path.read_text("utf-8"))["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_calls_is_there(path: Path) -> None:
    """Programs of .ci can be executed."""
    for program in re.findall(r"\.ci/[a-z]+", commands(path)):
        assert os.access(ROOT / program, os.X_OK), program


def test_the_nightly_run_has_all_long_suites_and_the_lowest_versions() -> None:
    """Each is a target of the Makefile; the lowest Python is the one that pyproject.toml allows."""
    (job,) = jobs(ROOT / ".github" / "workflows" / "nightly.yml").values()
    runs = {each["target"]: each["python"] for each in job["strategy"]["matrix"]["include"]}
    assert runs.keys() == {"faults", "spark-faults", "simulate", "lowest"}
    assert runs.keys() <= set(TARGETS)
    assert f'requires-python = ">={runs["lowest"]}"' in PYPROJECT
    assert "make ${{ matrix.target }}" in commands(ROOT / ".github" / "workflows" / "nightly.yml")
