"""`halfbridge keys`: it prints a key file, and reports what it finds in one."""

import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from halfbridge.checker.admin.doctor.logs import END_MS, key_problems
from halfbridge.cli.keys import keys
from halfbridge.cli.options import acting, confirm, who
from halfbridge.serde.signing_keys import Role, load_key_file
from tests.kit.records import BORN_MS
from tests.kit.signing import a_key, a_ring, a_table, write_key_file


def run(*words: str, status: int = 0) -> str:
    """Return what a command prints."""
    result = CliRunner().invoke(keys, list(words), standalone_mode=False)
    assert (result.return_value or 0) == status, result.output
    assert result.exception is None
    return result.output


@pytest.mark.parametrize("algorithm", ["ed25519", "hmac-sha256"])
def test_new_keys_make_a_file(tmp_path: Path, algorithm: str) -> None:
    """The table of who signs signs, and the table of all others verifies."""
    text = run("new", "orders-1", "--role", "client", "--group", "orders", "--algorithm", algorithm)
    demand = run("demand", "--in", "1h", "--fresh", "5m")
    tables = re.split(r"(?m)^(?=\[\[)", text)[1:]
    rings = []
    for number, table in enumerate(tables):
        path = tmp_path / f"{number}.toml"
        path.write_text(f'installation = "shop"\n{table}\n{demand}')
        rings.append(load_key_file(path))
    key = rings[0].keys["orders-1"]
    assert (key.role, key.groups) == (Role.CLIENT, {"orders"})
    assert rings[-1].keys["orders-1"].is_signed(b"data", key.sign(b"data"))
    assert rings[-1].keys["orders-1"].can_sign == (algorithm == "hmac-sha256")
    assert rings[0].demands[0].fresh_ms == 300_000


def test_two_new_keys_differ() -> None:
    """Nothing of a key is guessed."""
    assert run("new", "a", "--role", "daemon") != run("new", "a", "--role", "daemon")


@pytest.mark.parametrize("words", [("--in", "9m"), ("--fresh", "59s")])
def test_a_demand_is_made_for_the_future(words: tuple[str, str]) -> None:
    """A demand that begins before every worker has it would doubt what was delivered."""
    result = CliRunner().invoke(keys, ["demand", *words])
    assert result.exit_code == 2
    assert "at least" in result.output


def test_a_file_is_checked(tmp_path: Path) -> None:
    """Each key and each demand has its line; secrets have none."""
    text = run("check", str(write_key_file(tmp_path / "keys.toml", a_table())))
    assert "key client-1: signs as client of *, hmac-sha256, from the beginning" in text
    assert "demanded of *, from the beginning" in text
    lacks = write_key_file(tmp_path / "lacks.toml", a_table(a_key("client")))
    run("check", str(lacks), status=1)


def test_a_key_that_ends_without_another_is_a_problem() -> None:
    """Two weeks before, if no key of its role continues for its groups."""
    ends = a_key("client", valid_until_ms=BORN_MS + END_MS)
    others = [a_key("daemon"), a_key("operator")]
    (problem,) = key_problems(a_ring(ends, *others), BORN_MS)
    assert "key client-1 ends at" in problem
    assert key_problems(a_ring(ends, *others), BORN_MS - 1) == []
    follows = a_key("client", id="client-2", valid_from_ms=BORN_MS)
    assert key_problems(a_ring(ends, follows, *others), BORN_MS) == []
    gap = a_key("client", id="client-2", valid_from_ms=BORN_MS + END_MS + 1)
    assert len(key_problems(a_ring(ends, gap, *others), BORN_MS)) == 1


# --- who acts, why, and whether anybody was asked ------------------------------------------


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
def test_what_is_missing_is_reported(words: list[str], wanted: str) -> None:
    """Wrong usage, before anything is done."""
    result = CliRunner().invoke(act, words)
    assert result.exit_code == 2
    assert wanted in result.output
