"""An ingest process, held at its first batch between the writing of files and the commit.

python tests/spark/ingest_driver.py DIRECTORY ARGUMENT...

It creates DIRECTORY/held at that point, and continues once DIRECTORY/go exists.
"""

import sys
import time
from pathlib import Path

from halfbridge.spark_jobs.ingest import main
from halfbridge.spark_jobs.tables.delta_rs import DeltaWriter
from halfbridge.spark_jobs.tables.storage import Storage, StoredFile

HELD = "held"
GO = "go"
HELD_S_MAX = 600.0
_POLL_S = 0.05


def hold_here(directory: Path) -> None:
    """Create `HELD` in the directory, and wait until `GO` exists there."""
    (directory / HELD).touch()
    deadline_s = time.monotonic() + HELD_S_MAX
    while not (directory / GO).exists() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


class HeldStorage(Storage):
    """Lists the files of a batch once DIRECTORY/go exists."""

    directory: Path

    def files(self, directory: str, suffix: str) -> list[StoredFile]:
        hold_here(self.directory)
        return super().files(directory, suffix)


def hold(directory: Path) -> None:
    """Hold every DeltaWriter of this process by the files of `directory`."""
    HeldStorage.directory = directory
    begin = DeltaWriter.__init__

    def held(writer: DeltaWriter, *words: object) -> None:
        begin(writer, *words)
        writer._storage = HeldStorage(writer._spark)

    # It takes any arguments, and passes them on.
    DeltaWriter.__init__ = held  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    hold(Path(sys.argv[1]))
    main(sys.argv[2:])
