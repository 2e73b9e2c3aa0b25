"""Makes one class data archive of a list of classes, in a process of its own.

Run as a file, without site packages, with low priority, after the JVM that recorded the
list: keep its imports to the standard library. `class_archive.py` starts it.

The archive is renamed into its place when it is complete. The process that starts this one holds
the lock on `<stem>.claim`, so that no other process records for this archive meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Spark's has 160 MB, a broker's 70 MB: room for two of each, for the Python environments and Kafka
# versions that one user has at a time.
ARCHIVES_BYTES_MAX = 1 << 30
FAILURES_MAX = 16  # notes of a few lines
MAKE_S_MAX = 900.0  # 10 s for a broker's, 40 s for Spark's, of processor time that others leave
LOCK_S_MAX = 2 * MAKE_S_MAX  # one archive that another process makes, and one's own
_POLL_S = 0.5  # a twentieth of the shortest making
_NICE = 10  # a tenth of what a busy process gets: at 19 a machine under tests takes half an hour
_TAIL_BYTES = 2_000  # the end of a JVM's log, with its error: a screen
_SCRATCH = "making-"


def archive_of(directory: Path, stem: str) -> Path | None:
    """Return the archive that has the length that its name says; None where there is none."""
    for path in sorted(directory.glob(f"{stem}-*.jsa")):
        if path.stem.rpartition("-")[2] == str(path.stat().st_size):
            return path
    return None


def claim_of(directory: Path, stem: str) -> Path:
    """Return the file that is locked by who records or makes the archive."""
    return directory / f"{stem}.claim"


def list_of(directory: Path, stem: str) -> Path:
    """Return the file that the recording JVM writes."""
    return directory / f"{stem}.classes"


def failure_of(directory: Path, stem: str) -> Path:
    """Return the file whose presence says that this archive cannot be made, and why."""
    return directory / f"{stem}.failed"


def make(directory: Path, stem: str, java: str, class_path: str, *jvm_flags: str) -> None:
    """Make the archive, unless it is there, and remove those that were not used for longest."""
    with _only_maker(directory):
        if archive_of(directory, stem) is None:
            scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=directory))
            try:
                command = [java, *jvm_flags, "-cp", class_path]
                _make(directory, stem, command, scratch)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        list_of(directory, stem).unlink(missing_ok=True)
        prune(directory, stem)


def _make(directory: Path, stem: str, command: list[str], scratch: Path) -> None:
    classes, archive = scratch / "classes", scratch / "archive"
    recorded = list_of(directory, stem).read_bytes()
    # The JVM that records may not have ended yet, or may have been killed within a line.
    classes.write_bytes(recorded[: recorded.rfind(b"\n") + 1])
    what = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}"]
    log = scratch / "log"
    with log.open("wb") as output:
        try:
            status = subprocess.run(  # noqa: S603  # the Java that recorded the list
                [*command, "-Xshare:dump", *what],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=MAKE_S_MAX,
            ).returncode
        except subprocess.TimeoutExpired:
            return  # a machine without time: another recording may have more of it
    if status == 0 and archive.is_file():
        _sync(archive)
        archive.replace(directory / f"{stem}-{archive.stat().st_size}.jsa")
        return
    tail = log.read_bytes()[-_TAIL_BYTES:]
    failure_of(directory, stem).write_bytes(b"java ended with status %d\n" % status + tail)


def prune(directory: Path, stem: str) -> None:
    """Remove archives beyond `ARCHIVES_BYTES_MAX`, those that were used last are kept.

    Damaged archives are removed too, and so are files that killed processes left.
    """
    kept_bytes = 0
    for path in _newest_first(directory, "*.jsa"):
        size = path.stat().st_size
        damaged = path.stem.rpartition("-")[2] != str(size)
        kept_bytes += size
        # The newest is this one, or in use.
        if damaged or (kept_bytes > ARCHIVES_BYTES_MAX and kept_bytes > size):
            path.unlink(missing_ok=True)
            kept_bytes -= size
    for path in _newest_first(directory, "*.failed")[FAILURES_MAX:]:
        path.unlink(missing_ok=True)
    for path in directory.glob("*.claim"):
        if path.stem != stem and not _is_locked(path):
            # A process that opens it just now locks a deleted file: two may record, one makes.
            list_of(directory, path.stem).unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def _newest_first(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _sync(archive: Path) -> None:
    """Flush the bytes to disk before the name: a JVM does not check whether they are zeros."""
    with archive.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _only_maker(directory: Path) -> Iterator[None]:
    """Hold the lock of all makers, so that one at a time takes a processor."""
    deadline = time.monotonic() + LOCK_S_MAX
    with (directory / "make.lock").open("a", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    sys.exit(f"{directory} has been locked for {LOCK_S_MAX:.0f} s")
                time.sleep(_POLL_S)
        for left in directory.glob(f"{_SCRATCH}*"):  # of a maker that was killed
            shutil.rmtree(left, ignore_errors=True)
        yield


def main() -> None:
    """Make an archive: the arguments are those of `make`."""
    directory, stem, *rest = sys.argv[1:]
    os.nice(_NICE)
    with suppress(FileNotFoundError):  # the cache directory was removed, or nothing was recorded
        make(Path(directory), stem, *rest)


if __name__ == "__main__":
    main()
