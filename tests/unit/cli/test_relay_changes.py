"""`halfbridge relay run --changes`: what is wrong is told before anything begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from halfbridge.cli import cli


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "--url"),
        (("--changes", "shop.orders"), "--changes needs --map"),
    ],
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
