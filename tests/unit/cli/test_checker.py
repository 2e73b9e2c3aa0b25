"""What `halfbridge checker init` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.admin.reinit import NewOffsets
from halfbridge.cli.checker import show_offsets
from halfbridge.serde.progress import Progress

if TYPE_CHECKING:
    import pytest


def test_an_id_is_shown_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An id comes from a record: it may hold what looks like lines of the report."""
    progress = Progress(half=1, op=2, rebuild_to=3, ops_from=4, position=5)
    found = NewOffsets(progress, (), ("A\nnever applied   0",), (), ("B",), ())
    show_offsets(found, {"as_json": False, "partition": 0, "dry_run": True})
    assert capsys.readouterr().out.splitlines() == [
        "partition 0: H=1 O=2 R=3 T=4 P=5",
        "applied before  0",
        r"still to apply  1: A\nnever applied   0",
        "applied twice   0",
        "never applied   1: B",
        "uncertain       0",
        "dry run: nothing committed",
    ]
