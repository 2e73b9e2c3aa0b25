"""`halfbridge spark`: jobs by name, imported when used, and errors of one line with status 1."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from halfbridge.checker.admin.dead.redoing import Purged
from halfbridge.cli import cli
from halfbridge.cli.dead import print_purge
from halfbridge.cli.spark import JOBS


def test_help_lists_every_job() -> None:
    """--help shows all of them, with a line each."""
    result = CliRunner().invoke(cli, ["spark", "--help"])
    assert result.exit_code == 0
    for name, (_, text) in JOBS.items():
        assert f"{name} " in result.output
        assert text in result.output


@pytest.mark.process
def test_help_needs_no_pyspark() -> None:
    """It is an extra, and takes a second to import."""
    code = (
        "import sys; from halfbridge.cli import cli;"
        "cli.main(['spark', '--help'], standalone_mode=False);"
        "sys.exit(bool({'pyspark', 'py4j'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "Missing command"),
        (["inges"], "did you mean 'ingest'?"),
        (["nothing-like-it"], "known: "),
        (["replay", "--nothing"], "--nothing"),
        (["ingest", "--topic", "orders"], "--bootstrap-servers"),
    ],
)
def test_wrong_usage_is_one_line_and_status_1(words: list[str], named: str) -> None:
    """Status 2 is kept for findings; the line names what is wrong and where help is."""
    result = CliRunner(env={"HALFBRIDGE_BOOTSTRAP_SERVERS": None}).invoke(cli, ["spark", *words])
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert named in line
    assert "--help" in line


def test_pyspark_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line says what to install."""
    monkeypatch.setattr("halfbridge.cli.options.find_spec", lambda name: None)
    result = CliRunner().invoke(cli, ["spark", "ingest"])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "pip install 'halfbridge[spark]'" in line


@pytest.mark.parametrize("job", JOBS)
def test_every_job_explains_itself(job: str) -> None:
    """Each one is there, and its --help tells what it does."""
    result = CliRunner().invoke(cli, ["spark", job, "--help"])
    assert result.exit_code == 0, result.output
    assert f" spark {job} [OPTIONS]" in result.output


# --- `halfbridge relay run --changes`: errors are reported before anything begins --------


@pytest.mark.parametrize(
    ("words", "says"), [((), "--url"), (("--changes", "shop.orders"), "--changes needs --map")]
)
def test_a_missing_option_is_named(words: tuple[str, ...], says: str) -> None:
    """Of either kind of relay."""
    result = CliRunner().invoke(cli, ["relay", "run", *words], env={"HALFBRIDGE_DATABASE_URL": ""})
    assert result.exit_code != 0
    assert says in result.output


def test_a_wrong_mapping_is_one_line(tmp_path: Path) -> None:
    """It names the file, the field and what is allowed."""
    path = tmp_path / "mapping.toml"
    path.write_text('topic = "orders"\nkey_colum = "id"\n', "utf-8")
    words = ["relay", "run", "--changes", "shop.orders", "--map", str(path)]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code != 0
    text = result.output + str(result.exception)
    assert "key_colum" in text
    assert "did you mean key_column?" in text


# --- what `halfbridge dead` prints for people ----------------------------------------------


def test_a_dry_run_of_a_purge_does_not_say_that_it_was_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each line says what would be."""
    meant = Purged(given_up=(), upto={0: 24}, letters=8)
    for is_done in (False, True):
        print_purge(meant, is_done=is_done, err=False)
    assert capsys.readouterr().out.splitlines() == [
        "would be deleted: records of partition 0 below offset 24",
        "8 dead letters would be deleted",
        "deleted: records of partition 0 below offset 24",
        "8 dead letters deleted",
    ]
