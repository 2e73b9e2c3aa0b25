"""A tally follows files that grow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from halfbridge.demo.tally import Tally

if TYPE_CHECKING:
    from pathlib import Path


def test_tally_reads_each_byte_once(tmp_path: Path) -> None:
    """Counts grow with the files, half-written lines wait, missing files count nothing."""
    log, seen = tmp_path / "a.jsonl", tmp_path / "seen.jsonl"
    tally = Tally(logs=[log, tmp_path / "never"], witnessed=seen, dead_topic="dead")
    tally.refresh()
    assert (tally.decided, tally.delivered, tally.dead_lettered) == (0, 0, 0)

    log.write_text('{"e":"decided"}\n{"e":"deci')
    seen.write_text("".join(json.dumps([t, 0, 0, None, "00", []]) + "\n" for t in ("dead", "r")))
    tally.refresh()
    tally.refresh()
    assert (tally.decided, tally.delivered, tally.dead_lettered) == (1, 1, 1)

    with log.open("a") as file:
        file.write('ded"}\n')
    tally.refresh()
    assert tally.decided == 2
