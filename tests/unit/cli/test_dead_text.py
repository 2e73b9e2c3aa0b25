"""What `halfbridge dead` prints for people."""

from __future__ import annotations

import pytest

from halfbridge.checker.admin.dead.redoing import Purged
from halfbridge.cli.dead import print_purge


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
