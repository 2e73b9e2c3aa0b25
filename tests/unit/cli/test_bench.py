"""What `halfbridge bench` refuses before it starts anything."""

import pytest
from click.testing import CliRunner

from halfbridge.cli import cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "15"], "'--size': 15 is not in the range"),
        (["--messages", "0"], "'--messages': 0 is not in the range"),
        (["--suite"], "No such option"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], said: str) -> None:
    """Bad options are an error of usage, reported in one line; nothing is measured."""
    done = CliRunner().invoke(cli, ["bench", *words])
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
