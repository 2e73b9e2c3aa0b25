"""The unit file of the daemon: systemd accepts it, and restarts what no operator must correct."""

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from halfbridge.checker.errors import EXIT_CONFIG, EXIT_OPERATOR
from halfbridge.cli import cli

pytestmark = pytest.mark.feature

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "halfbridge-checker.service"
ANALYZE = shutil.which("systemd-analyze")
VERIFY_S_MAX = 60.0


def _service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have case
    parser.read(UNIT)
    return parser["Service"]


def test_an_abort_is_restarted_and_a_wrong_setting_is_not() -> None:
    """`on-failure` means signals too; the daemon's own statuses for operators are left out."""
    service = _service()
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == [str(EXIT_CONFIG), str(EXIT_OPERATOR)]


def test_the_command_has_these_options() -> None:
    """All flags of ExecStart are known."""
    _, *words = shlex.split(_service()["ExecStart"])
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"], prog_name="halfbridge")
    assert ended.value.code == 0


@pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """With a program that exists in place of the one of a real installation."""
    unit = tmp_path / UNIT.name
    program = shlex.split(_service()["ExecStart"])[0]
    unit.write_text(UNIT.read_text().replace(program, "/bin/true"))
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "verify", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=VERIFY_S_MAX,
    )
    assert (done.returncode, done.stderr) == (0, "")
