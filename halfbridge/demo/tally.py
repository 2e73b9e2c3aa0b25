"""Follows the client logs and the witness's file during a run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfbridge.testkit.reader import load_records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfbridge.testkit.history import ReadRecord

_DECIDED = b'"e":"decided"'
_ANSWERING = b'"e":"answering"'


@dataclass(slots=True)
class Tally:
    """Counts that `refresh` updates. Each byte of the files is read once.

    Attributes:
        logs: Client logs; they need not exist yet.
        witnessed: The witness's file.
        dead_topic: Name of the dead-letter topic.
        decided: Number of decisions that were acknowledged to order services.
        proven: Number of transactions for which a check was answered with ROLLBACK.
        records: Number of records that the witness read, dead letters included.
        dead_lettered: Number of dead letters that the witness read.
    """

    logs: Sequence[Path]
    witnessed: Path
    dead_topic: str
    decided: int = 0
    proven: set[str] = field(default_factory=set)
    records: list[ReadRecord] = field(default_factory=list)
    dead_lettered: int = 0
    _read_to: dict[Path, int] = field(default_factory=dict)

    @property
    def delivered(self) -> int:
        """Number of records that the witness read from real topics."""
        return len(self.records) - self.dead_lettered

    def refresh(self) -> None:
        """Read what was written to the files since the last call."""
        for log in self.logs:
            if log.exists():
                fresh = self._fresh_lines(log)
                self.decided += fresh.count(_DECIDED)
                answers = (line for line in fresh.splitlines() if _ANSWERING in line)
                self.proven |= {
                    answer["tx"]
                    for answer in map(json.loads, answers)
                    if answer["kind"] == "ROLLBACK"
                }
        if self.witnessed.exists():
            offset = self._read_to.get(self.witnessed, 0)
            records, self._read_to[self.witnessed] = load_records(self.witnessed, offset=offset)
            self.records += records
            self.dead_lettered += sum(record.topic == self.dead_topic for record in records)

    def _fresh_lines(self, log: Path) -> bytes:
        with log.open("rb") as file:
            file.seek(self._read_to.get(log, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to[log] = self._read_to.get(log, 0) + len(whole)
        return whole
