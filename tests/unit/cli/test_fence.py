"""`halfbridge fence` on SQLite; the table itself is tested on all databases in tests/sql."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine

from halfbridge.cli import cli
from halfbridge.serde.identity import TRANSACTION_IDS
from halfbridge.sql import Fence


def run(*words: str, url: str | None = None) -> Result:
    """Run `halfbridge fence`."""
    return CliRunner(env={"HALFBRIDGE_DATABASE_URL": url}).invoke(cli, ["fence", *words])


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return a database that is not there yet."""
    return f"sqlite:///{tmp_path / 'shop.sqlite'}"


def test_create_show_and_purge(url: str) -> None:
    """By flag or variable, for people and for programs; create twice does no harm."""
    made = run("create", "--url", url)
    assert made.exit_code == 0
    again = json.loads(run("create", "--json", url=url).stdout)
    assert again["table"] == "halfbridge_fence"
    assert again["table_id"] in made.stdout
    purged = json.loads(run("purge", "--json", url=url).stdout)
    assert purged["rows"] == 0
    shown = json.loads(run("show", "--json", url=url).stdout)
    assert shown["info"] == {
        "table_id": again["table_id"],
        "purged_before_ms": purged["purged_before_ms"],
    }
    assert (shown["groups"], shown["oldest_ms"]) == ({}, None)
    assert again["table_id"] in run("show", url=url).stdout
    assert run("purge", url=url).stdout.startswith("deleted 0 rows of transactions born before 20")


def test_rows_are_shown_by_group(url: str) -> None:
    """With the outcome of each."""
    engine = create_engine(url)
    fence = Fence(engine, producer_group="order-service", name="orders_fence")
    fence.create()
    fence.roll_back(TRANSACTION_IDS.next())
    engine.dispose()
    shown = run("show", "--name", "orders_fence", url=url)
    assert "order-service: 0 committed, 1 rolled_back" in shown.stdout


def test_a_purge_that_is_held_up_is_one_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to look for; nothing is deleted, and it may be run again."""
    monkeypatch.setattr("halfbridge.sql.fence_purge.ATTEMPTS_MAX", 1)
    monkeypatch.setattr("halfbridge.sql.dialects.sqlite.CHECK_WAIT_MS", 10)
    assert run("create", url=url).exit_code == 0
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as writer:
        writer.execute("BEGIN IMMEDIATE")
        result = run("purge", url=url)
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert "another connection writes to" in line
        assert line.endswith("run the purge again")
        writer.rollback()
    assert run("purge", url=url).exit_code == 0


@pytest.mark.parametrize(
    ("words", "url", "status", "named"),
    [
        (["create"], None, 2, "--url"),
        (["create"], "no url", 2, "postgresql+psycopg://user:password@host/name"),
        (["create"], "oracle://host/name", 2, "oracle"),
        (["create"], "postgresql+psycopg9://host/name", 2, "pip install 'halfbridge[sql]'"),
        (["show"], "sqlite://", 1, "there is no table halfbridge_fence"),
        (["show"], "sqlite:////nowhere/at/all.sqlite", 1, "unable to open database file"),
        (["purge", "--older-than-ms", "1"], "sqlite://", 2, "rows are needed for 2851200000 ms"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], url: str | None, status: int, named: str
) -> None:
    """Status 2 for what was given, 1 for what the database says."""
    result = run(*words, url=url)
    assert result.exit_code == status
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert named in line


def test_a_password_is_not_repeated() -> None:
    """Neither of a URL that is wrong, nor of a database that does not answer."""
    for url in ("nothing:secret:8", "postgresql+psycopg://me:secret@127.0.0.1:1/shop"):
        result = run("create", url=url)
        assert result.exit_code != 0
        assert "secret" not in result.output


@pytest.mark.process
def test_help_needs_no_sqlalchemy() -> None:
    """It is an extra."""
    code = (
        "import sys; from halfbridge.cli import cli;"
        "cli.main(['fence', '--help'], standalone_mode=False);"
        "sys.exit('sqlalchemy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_sqlalchemy_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The one line says what to install."""
    monkeypatch.setattr("halfbridge.cli.options.find_spec", lambda name: None)
    result = run("create", url=url)
    assert result.exit_code == 1
    assert "pip install 'halfbridge[sql]'" in result.stderr


@pytest.mark.process
def test_names_without_sqlalchemy() -> None:
    """Importing Fence without the extra raises an error that names the package to install."""
    code = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "try:\n    from halfbridge.sql import Fence\n"
        "except ModuleNotFoundError as error:\n"
        "    assert \"pip install 'halfbridge[sql]'\" in str(error), error\n"
        "else:\n    raise AssertionError"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
