"""What `halfbridge doctor` prints, its exit status, and what its file holds."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from halfbridge.checker.admin.doctor.facts import Severity, finding
from halfbridge.cli import cli
from halfbridge.cli.doctor import _show, _status

SECRET = "correct-horse"
NOWHERE = ["--bootstrap-servers", "127.0.0.1:1", "--timeout", "1"]


def run(*words: str) -> Result:
    """Run the command where no broker is."""
    return CliRunner().invoke(cli, ["doctor", *NOWHERE, *words])


def test_without_a_broker_it_says_so_to_machines() -> None:
    """One object on standard output, exit status 2."""
    result = run("--json")
    body = json.loads(result.stdout)
    assert result.exit_code == 2
    assert body["ok"] is False
    first = body["findings"][0]
    assert set(first) == {"severity", "code", "what", "mend"}
    assert (first["severity"], first["code"]) == ("error", "unreachable")


def test_a_bundle_holds_no_secret(tmp_path: Path) -> None:
    """Values of Kafka properties are left out, be they of the daemon or of a client."""
    bundle = tmp_path / "out.zip"
    words = ("--kafka", f"sasl.password={SECRET}", "--client-kafka", f"sasl.password={SECRET}")
    result = run(*words, "--bundle", str(bundle))
    assert result.exit_code == 2
    with zipfile.ZipFile(bundle) as opened:
        texts = {name: opened.read(name).decode() for name in opened.namelist()}
    assert set(texts) == {"findings.json", "facts.json", "settings.json", "versions.json"}
    assert SECRET not in result.output + "".join(texts.values())
    assert json.loads(texts["settings.json"])["kafka"] == {"sasl.password": "(hidden)"}
    assert json.loads(texts["findings.json"])["findings"][0]["code"] == "unreachable"


def test_a_bundle_that_cannot_be_written_is_an_error_of_its_flag(tmp_path: Path) -> None:
    """One line, and no traceback."""
    result = run("--bundle", str(tmp_path / "nowhere" / "out.zip"))
    assert result.exit_code == 2
    assert "--bundle" in result.output
    assert "cannot be written: No such file or directory" in result.output


def test_findings_are_lines_with_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """And how many there are; the exit status goes by the worst."""
    found = (finding("no-worker", "nobody", "run it"), finding("memory", "little", "export A=1"))
    _show(found)
    assert capsys.readouterr().out.splitlines() == [
        "error    no-worker: nobody",
        "         mend: run it",
        "warning  memory: little",
        "         mend: export A=1",
        "1 error, 1 warning",
    ]
    assert (_status(found), _status(found[1:]), _status(())) == (2, 1, 0)
    assert found[0].severity is Severity.ERROR
