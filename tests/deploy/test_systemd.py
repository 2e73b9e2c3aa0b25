"""The unit files: systemd accepts them, and restarts what no operator must correct."""

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from halfbridge.checker.errors import EXIT_CONFIG, EXIT_OPERATOR
from halfbridge.cli import EXIT_USAGE, cli

pytestmark = pytest.mark.feature

UNITS = sorted(Path(__file__).parents[2].joinpath("deploy", "systemd").glob("*.service"))
# Exit statuses after which an operator must act.
FINAL = {
    "halfbridge-checker": [EXIT_CONFIG, EXIT_OPERATOR],
    "halfbridge-respond": [EXIT_USAGE],
}
ANALYZE = shutil.which("systemd-analyze")
VERIFY_S_MAX = 60.0


@pytest.fixture(params=UNITS, ids=lambda each: each.stem)
def unit(request: pytest.FixtureRequest) -> Path:
    """Each unit file in turn."""
    path: Path = request.param
    return path


def _service(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have case
    parser.read(unit)
    return parser["Service"]


def test_an_abort_is_restarted_and_a_wrong_setting_is_not(unit: Path) -> None:
    """`on-failure` means signals too; the statuses for operators are left out."""
    service = _service(unit)
    assert service["Restart"] == "on-failure"
    assert [*map(int, service["RestartPreventExitStatus"].split())] == FINAL[unit.stem]


def test_the_command_has_these_options(unit: Path) -> None:
    """All flags of ExecStart are known."""
    _, *words = shlex.split(_service(unit)["ExecStart"])
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"], prog_name="halfbridge")
    assert ended.value.code == 0


@pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    """With a program that exists in place of the one of a real installation."""
    copy = tmp_path / unit.name
    program = shlex.split(_service(unit)["ExecStart"])[0]
    copy.write_text(unit.read_text().replace(program, "/bin/true"))
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "verify", str(copy)],
        capture_output=True,
        text=True,
        check=False,
        timeout=VERIFY_S_MAX,
    )
    assert (done.returncode, done.stderr) == (0, "")
