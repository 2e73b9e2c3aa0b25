"""A cache directory of a test's own, with all jars of the user's and no class data archive."""

import os
from pathlib import Path

from halfbridge.java.class_archive import DIRECTORY
from halfbridge.java.locked_jars import JarSettings

# A minute of processor time at most, on a machine that gives a tenth of one.
ARCHIVE_S_MAX = 600.0


def jar_settings() -> JarSettings:
    """Return the settings of the environment that the tests run in."""
    return JarSettings.from_environ(os.environ)


def own_cache(directory: Path) -> Path:
    """Fill an empty directory and return it."""
    for entry in jar_settings().cache().iterdir():
        if entry.name != DIRECTORY:
            (directory / entry.name).symlink_to(entry)
    return directory


def archives(cache: Path) -> list[Path]:
    """Return the class data archives that a cache has."""
    return list((cache / DIRECTORY).glob("*.jsa"))


def maps(process_id: int, archive: Path) -> bool:
    """Tell whether a JVM has mapped an archive."""
    return str(archive) in Path(f"/proc/{process_id}/maps").read_text()
