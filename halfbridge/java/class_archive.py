"""Class data archives: what one JVM has made of its classes, kept for the JVMs that come after it.

A third to a half of the processor time of a start goes into finding, parsing and verifying classes.
HotSpot maps them from a file instead, an archive, which fits one Java and one class path. The first
JVM for which there is no archive records which classes it loads; a process of low priority makes
the archive of them afterwards (`archive_maker.py`); every later JVM maps it.

An archive never stops a start: a JVM that cannot use it (`-Xshare:auto`) reads its classes as
before. Java 17 however crashes on an archive that was cut off, so its name says how long it is.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from halfbridge.java import archive_maker

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from typing_extensions import Self

    from halfbridge.java.jvm import Java
    from halfbridge.java.locked_jars import JarSettings

DIRECTORY = "class-archives"  # in the cache directory
_KEY_LENGTH = 16  # 64 bits: a cache directory has some ten archives
# The shell ends at once: the process that started it has no child to wait for, or to warn of.
_IN_BACKGROUND = '"$@" </dev/null >/dev/null 2>&1 &'


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """What a JVM is started with: an archive to map, a list to record for one, or nothing.

    A context manager that releases the claim.
    """

    java: Path  # the runtime that the archive is for
    directory: Path  # where archives are
    stem: str  # what names of its files begin with; says which Java and which class path
    # For the JVM. Empty where there is no archive and none can be made, or where another process is
    # making it.
    flags: tuple[str, ...] = ()
    # The locked file that lets this process alone record; None: it does not.
    claim: IO[bytes] | None = None

    @property
    def records(self) -> bool:
        """Tell whether `flags` record. Give them to one JVM then, to a second one none."""
        return self.claim is not None

    def make_in_background(self, class_path: str, *jvm_flags: str) -> None:
        """Have the archive made of what was recorded, if anything was; returns at once.

        The process that makes it outlives this one, for some seconds of processor time.
        `class_path` is the recording JVM's property java.class.path; `jvm_flags` changed its
        modules.
        """
        if self.claim is None or self.claim.closed:
            return
        maker = [sys.executable, "-I", "-S", archive_maker.__file__]
        what = [str(self.directory), self.stem, str(self.java), class_path, *jvm_flags]
        # No archive is no error: without one, starts take longer.
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(  # noqa: S603  # this package's own file
                ["/bin/sh", "-c", _IN_BACKGROUND, "sh", *maker, *what],
                check=False,
                start_new_session=True,
                pass_fds=(self.claim.fileno(),),  # so the lock lasts until the archive is made
            )
        self.release()

    def release(self) -> None:
        """Let another process record. Idempotent."""
        if self.claim is not None:
            self.claim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def class_archive(
    name: str, java: Java, class_path: Iterable[Path], *others: str, settings: JarSettings
) -> ClassArchive:
    """Return what the next JVM of this kind is to be started with.

    At most one process at a time records for an archive, until it releases its claim. A class path
    that changes has an archive of its own; `others` are whatever else changes it or the modules.

    Raises:
        JarsError: there is no cache directory; the user names one.
    """
    directory = settings.cache() / DIRECTORY
    executable = java.executable.resolve()
    stem = f"{name}-{_key(executable, class_path, others)}"
    without = ClassArchive(executable, directory, stem)
    if not settings.class_archives:
        return without
    try:
        if found := archive_maker.archive_of(directory, stem):
            with suppress(OSError):  # the cache may be another user's
                os.utime(found)  # the maker removes what has not been used for longest
            flags = (f"-XX:SharedArchiveFile={found}", "-Xshare:auto")
            return ClassArchive(executable, directory, stem, flags)
        if archive_maker.failure_of(directory, stem).exists():
            return without
        directory.mkdir(parents=True, exist_ok=True)
        claim = _claim(archive_maker.claim_of(directory, stem))
    except OSError:
        return without  # a cache that can only be read, or not even that
    if claim is None:
        return without
    record = archive_maker.list_of(directory, stem)
    return ClassArchive(
        executable, directory, stem, (f"-XX:DumpLoadedClassList={record}", "-Xshare:auto"), claim
    )


def _key(java: Path, class_path: Iterable[Path], others: tuple[str, ...]) -> str:
    # HotSpot keeps to the same: its own version, and each jar's place, size and time. Flags of
    # memory and compilers are left out: classes are the same under all of them.
    files = [java.parent.parent / "lib" / "modules", *class_path]
    what = json.dumps([str(java), *map(_identity, files), *others])
    return hashlib.sha256(what.encode()).hexdigest()[:_KEY_LENGTH]


def _identity(file: Path) -> tuple[str, int, int]:
    try:
        status = file.stat()
    except OSError:
        return str(file), 0, 0
    return str(file), status.st_size, status.st_mtime_ns


def _claim(path: Path) -> IO[bytes] | None:
    """Return the locked file, so that this process may record; None: another process has it."""
    claim = path.open("ab")
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        claim.close()
        return None
    return claim
