"""What `halfbridge bench` refuses before it starts anything."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from halfbridge.cli import cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "--scale"], "--suite or --scale"),
        (["--row", "idle"], "want --suite or --scale"),
        (["--undecided", "5"], "want --suite or --scale"),
        (["--suite", "--rate", "200"], "--rate has no effect here"),
        (["--scale", "--row", "idle"], "known: pairs-4-workers-1"),
        (["--suite", "--row", "nothing"], "no row nothing"),
    ],
)
def test_options_that_contradict_are_refused(words: list[str], said: str) -> None:
    """A contradiction is an error of usage, told in one line; nothing is measured."""
    done = CliRunner().invoke(cli, ["bench", *words])
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
