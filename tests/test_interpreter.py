"""Which interpreter `make` takes for .venv: `.ci/python`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHOOSE = Path(__file__).parents[1] / ".ci" / "python"
_CALL_S_MAX = 60.0


def choose(path: str) -> subprocess.CompletedProcess[str]:
    """Return what the script says when PATH is `path` and the directories of the system's tools."""
    programs = [shutil.which(each) for each in ("bash", "readlink")]
    bash, readlink = (Path(each) for each in programs if each is not None)
    tools = Path(path) / "tools"
    tools.mkdir(exist_ok=True)
    for each in (bash, readlink):
        (tools / each.name).symlink_to(each)
    return subprocess.run(
        [str(bash), str(CHOOSE)],
        env={"PATH": os.pathsep.join([path, str(tools)])},
        check=False,
        capture_output=True,
        text=True,
        timeout=_CALL_S_MAX,
    )


def make_python(directory: Path, name: str, *, loop_us: int) -> str:
    """Write a program that says it ran the loop in `loop_us`; return its path."""
    program = directory / name
    program.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo {loop_us} || echo Python 3.12\n', "utf-8")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("first_us", "second_us", "chosen"),
    [(1000, 700, "python3.12"), (1000, 850, "python3"), (700, 1000, "python3")],
)
def test_the_first_is_taken_unless_another_is_a_fifth_faster(
    tmp_path: Path, first_us: int, second_us: int, chosen: str
) -> None:
    """A slow build is passed over; between equals noise decides nothing."""
    make_python(tmp_path, "python3", loop_us=first_us)
    make_python(tmp_path, "python3.12", loop_us=second_us)

    told = choose(str(tmp_path))

    assert told.stdout.strip() == str(tmp_path / chosen)
    assert told.stderr == ""


def test_each_counts_by_its_best_round(tmp_path: Path) -> None:
    """Work beside the first measurement of an interpreter does not make it a slow one."""
    make_python(tmp_path, "python3", loop_us=1000)
    disturbed = tmp_path / "python3.12"
    was_called = tmp_path / "called"
    disturbed.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -c ] || {{ echo Python 3.12; exit; }}\n'
        f"[ -e {was_called} ] && echo 700 || {{ echo 1400; : > {was_called}; }}\n",
        "utf-8",
    )
    disturbed.chmod(0o755)

    told = choose(str(tmp_path))

    assert told.stdout.strip() == str(disturbed)


def test_a_real_interpreter_is_measured_and_taken(tmp_path: Path) -> None:
    """The loop runs on the Python at hand; one that cannot run the loop is no candidate."""
    broken = tmp_path / "python3.10"
    broken.write_text("#!/bin/sh\nexit 1\n", "utf-8")
    broken.chmod(0o755)
    real = tmp_path / "python3.11"
    real.symlink_to(sys.executable)

    told = choose(str(tmp_path))

    assert told.stdout.strip() == str(real)


def test_without_an_interpreter_the_script_says_what_to_install(tmp_path: Path) -> None:
    """`make` ends with the reason, and makes no environment."""
    told = choose(str(tmp_path))

    assert told.returncode == 1
    assert "give PYTHON=/path/to/python3" in told.stderr
