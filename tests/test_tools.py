"""Programs that are missing: what becomes of tests that call them."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import tools

ROOT = Path(__file__).parents[1]
FETCH = ROOT / ".ci" / "tools"
PREPARE = ROOT / "tests" / "docker" / "prepare"
SERVERS = ("postgres", "mariadbd", "redis-server", "mysqld-9")
NAMES = [
    *("prometheus", "promtool", "kubectl", "shellcheck", *SERVERS),
    *("chromium", "docker-compose", "axe-core", "actionlint", "apicurio-registry"),
]
# Where .ci/tools and the tests look for servers beside PATH.
PLACES = ("usr/lib/postgresql/*/bin", "usr/sbin")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No program is found, and the environment says nothing about it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv(tools.WITHOUT_VARIABLE, raising=False)


def test_a_missing_program_skips_on_a_laptop() -> None:
    """The reason says what to install."""
    with pytest.raises(pytest.skip.Exception, match="npm install --global axe-core"):
        tools.node_file("axe-core", "axe.min.js")
    with pytest.raises(pytest.skip.Exception, match="package prometheus"):
        tools.tool("promtool", package="prometheus")
    with pytest.raises(pytest.skip.Exception, match="package docker-compose"):
        tools.compose()


def test_a_missing_program_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI must not be green because nobody installed it; another name left out changes nothing."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(tools.WITHOUT_VARIABLE, "prometheus")
    with pytest.raises(pytest.fail.Exception, match="no promtool"):
        tools.tool("promtool", package="prometheus")
    with pytest.raises(pytest.fail.Exception, match="no docker-compose"):
        tools.compose()
    with pytest.raises(pytest.fail.Exception, match="no axe-core"):
        tools.node_file("axe-core", "axe.min.js")


def test_what_cannot_be_had_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In CI too, where the environment names it: a report shows what was not tested."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(tools.WITHOUT_VARIABLE, "promtool docker-compose")
    with pytest.raises(pytest.skip.Exception, match="cannot be had"):
        tools.tool("promtool", package="prometheus")
    with pytest.raises(pytest.skip.Exception, match="cannot be had"):
        tools.compose()


def test_a_program_that_is_there_is_found(tmp_path: Path) -> None:
    """By its path, as the tests call it."""
    program = tmp_path / "promtool"
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(0o755)
    assert tools.tool("promtool", package="prometheus") == str(program)


def test_a_file_of_npm_is_found_beside_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `npm install --global --prefix` puts it."""
    monkeypatch.setenv("PATH", f"/nowhere{os.pathsep}{tmp_path / 'bin'}")
    file = tmp_path / "lib" / "node_modules" / "axe-core" / "axe.min.js"
    file.parent.mkdir(parents=True)
    file.touch()
    assert tools.node_file("axe-core", "axe.min.js") == file


def test_a_program_beside_path_is_found_the_newest_first(tmp_path: Path) -> None:
    """As Debian keeps PostgreSQL's, one directory a version; PATH comes first."""
    for each in ("15/bin", "17/bin", "."):
        program = tmp_path / each / "postgres"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n", "utf-8")
        program.chmod(0o755)
    places = [f"{tmp_path.relative_to('/')}/{each}" for each in ("nowhere", "*/bin")]
    first = tools.tool("postgres", package="postgresql", places=places)
    assert first == str(tmp_path / "postgres")
    Path(first).unlink()
    then = tools.tool("postgres", package="postgresql", places=places)
    assert then == str(tmp_path / "17" / "bin" / "postgres")


def test_where_nothing_can_be_fetched_everything_is_named(tmp_path: Path) -> None:
    """Without a package manager the run continues: names go to the tests, the reason to a human.

    The tools that it is made of are on PATH, apt-get and what it would fetch are not. Servers that
    are installed are found even so.
    """
    there = {name for name in SERVERS for place in PLACES if any(Path("/").glob(f"{place}/{name}"))}
    done = run_bare(tmp_path, FETCH, str(tmp_path / "tools"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [name for name in NAMES if name not in there]
    assert len(done.stderr.splitlines()) == 1
    assert "not to be had here" in done.stderr


def test_without_docker_one_line_says_what_to_do(tmp_path: Path) -> None:
    """`make test-docker` where nothing is there and nothing can be installed."""
    done = run_bare(tmp_path, PREPARE, str(tmp_path / "dockerd.pid"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert re.search(r"needs docker\.io iptables .*docker-compose: install them", line)


def run_bare(directory: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script with what it is made of on PATH, which is `directory`, and nothing else."""
    for name in ("bash", "env", "mkdir", "id", "tail", "timeout"):
        (directory / name).symlink_to(Path("/usr/bin", name))
    return subprocess.run(
        list(map(str, command)),
        env={"PATH": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
