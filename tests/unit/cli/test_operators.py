"""Who acts, why, and whether anybody was asked."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from halfbridge.cli.options import acting, confirm, who


@click.command()
@acting
def act(**values: Any) -> None:
    """Act."""
    click.echo(f"{who(values)}: {values['reason']}")
    click.echo(confirm("sure?", yes=values["yes"]))


def test_the_operator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system says, or as `--actor` does."""
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("socket.gethostname", lambda: "h7")
    assert CliRunner().invoke(act, ["--reason", "r", "--yes"]).output == "ada@h7: r\nTrue\n"
    given = CliRunner().invoke(act, ["--reason", "r", "--yes", "--actor", "bob"])
    assert given.output == "bob: r\nTrue\n"


def test_a_user_without_a_name_is_named_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run as numbers."""

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert CliRunner().invoke(act, ["--reason", "r", "--yes"]).output.startswith("unknown@")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], "Missing option '--reason'"),
        (["--reason", " "], "must not be empty"),
        (["--reason", "x" * 1025], "at most 1024"),
        (["--reason", "r"], "standard input is no terminal; give --yes"),
    ],
)
def test_what_is_missing_is_told(words: list[str], wanted: str) -> None:
    """Wrong usage, before anything is done."""
    result = CliRunner().invoke(act, words)
    assert result.exit_code == 2
    assert wanted in result.output
