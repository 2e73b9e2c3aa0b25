"""An ingest of its own, held at its first batch between the writing of files and the commit.

python tests/spark/ingest_driver.py DIRECTORY ARGUMENT...

It makes DIRECTORY/held when it is there, and goes on once DIRECTORY/go is there.
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
    """Say in a directory that this process is held, and wait for the word to go on."""
    (directory / HELD).touch()
    deadline_s = time.monotonic() + HELD_S_MAX
    while not (directory / GO).exists() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


class HeldStorage(Storage):
    """Lists the files of a batch once it is told to."""

    directory: Path

    def files(self, directory: str, suffix: str) -> list[StoredFile]:
        hold_here(self.directory)
        return super().files(directory, suffix)


def hold(directory: Path) -> None:
    """Have every DeltaWriter of this process held in `directory`."""
    HeldStorage.directory = directory
    begin = DeltaWriter.__init__

    def held(writer: DeltaWriter, *words: object) -> None:
        begin(writer, *words)
        writer._storage = HeldStorage(writer._spark)

    # It takes any arguments, to hand them on.
    DeltaWriter.__init__ = held  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    hold(Path(sys.argv[1]))
    main(sys.argv[2:])
