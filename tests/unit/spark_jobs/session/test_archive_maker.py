"""The maker of class data archives: what it hands to Java, what it keeps, what it removes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from halfbridge.spark_jobs.session.archive_maker import (
    ARCHIVES_BYTES_MAX,
    FAILURES_MAX,
    archive_of,
    claim_of,
    failure_of,
    list_of,
    make,
    prune,
)

STEM = "kind-0123456789abcdef"
# Its archive is the list that it was given: all words of the command but these two are kept too.
COPY = """#!/bin/sh
for word; do case "$word" in
  -XX:SharedClassListFile=*) list="${word#*=}" ;;
  -XX:SharedArchiveFile=*) archive="${word#*=}" ;;
  *) printf '%s ' "$word" >>"$0.words" ;;
esac; done
cat "$list" >"$archive"
"""


def java_at(directory: Path, script: str) -> Path:
    """A Java that does what `script` says."""
    path = directory / "java"
    path.write_text(script)
    path.chmod(0o755)
    return path


def archive(directory: Path, stem: str, size: int, *, used_s: int) -> Path:
    """An archive of that many bytes, none of them on the disk, that was used at that time."""
    path = directory / f"{stem}-{size}.jsa"
    path.touch()
    os.truncate(path, size)
    os.utime(path, (used_s, used_s))
    return path


def test_whole_lines_of_the_list_become_the_archive(tmp_path: Path) -> None:
    """A JVM that was killed leaves half a line; flags and class path are those that were given."""
    java = java_at(tmp_path, COPY)
    list_of(tmp_path, STEM).write_text("java/lang/Object\njava/lang/Str")
    make(tmp_path, STEM, str(java), "a.jar:b.jar", "--add-modules=some")
    made = archive_of(tmp_path, STEM)
    assert made is not None
    assert made.read_text() == "java/lang/Object\n"
    words = (tmp_path / "java.words").read_text()
    assert words == "--add-modules=some -cp a.jar:b.jar -Xshare:dump "
    assert not list_of(tmp_path, STEM).exists()


def test_an_archive_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    """Of two makers for one archive the second finds it made."""
    there = archive(tmp_path, STEM, 10, used_s=1)
    make(tmp_path, STEM, "/no/such/java", "a.jar")
    assert archive_of(tmp_path, STEM) == there
    assert not failure_of(tmp_path, STEM).exists()


def test_a_java_that_makes_nothing_is_a_failure(tmp_path: Path) -> None:
    """Its status and last words are kept, and nothing else."""
    list_of(tmp_path, STEM).write_text("java/lang/Object\n")
    make(tmp_path, STEM, str(java_at(tmp_path, "#!/bin/sh\necho no; exit 1\n")), "a.jar")
    assert archive_of(tmp_path, STEM) is None
    assert failure_of(tmp_path, STEM).read_text() == "java ended with status 1\nno\n"
    assert not list(tmp_path.glob("making-*"))


def test_what_a_killed_maker_left_is_removed(tmp_path: Path) -> None:
    """Its half of an archive, whose size nobody limits, goes with the next maker."""
    left = tmp_path / "making-killed"
    left.mkdir()
    (left / "archive").write_text("half")
    archive(tmp_path, STEM, 10, used_s=1)
    make(tmp_path, STEM, "/no/such/java", "a.jar")
    assert not left.exists()


def test_archives_are_bounded(tmp_path: Path) -> None:
    """Those that were used last are kept, up to the limit; one that was cut off goes at once."""
    half = ARCHIVES_BYTES_MAX // 2
    kept = [archive(tmp_path, f"kind-{each}", half, used_s=10 + each) for each in range(2)]
    old = archive(tmp_path, "kind-old", half, used_s=1)
    cut = archive(tmp_path, "kind-cut", 100, used_s=50)
    os.truncate(cut, 50)
    prune(tmp_path, STEM)
    assert [path for path in (*kept, old, cut) if path.exists()] == kept


def test_an_archive_larger_than_the_limit_is_kept_while_it_is_the_newest(tmp_path: Path) -> None:
    """Else each start would record it again."""
    large = archive(tmp_path, STEM, ARCHIVES_BYTES_MAX + 1, used_s=2)
    old = archive(tmp_path, "kind-old", 10, used_s=1)
    prune(tmp_path, STEM)
    assert (large.exists(), old.exists()) == (True, False)


def test_failures_and_abandoned_claims_are_bounded(tmp_path: Path) -> None:
    """A list that nobody records any more goes; one that is being recorded stays."""
    for number in range(FAILURES_MAX + 3):
        failure_of(tmp_path, f"kind-{number}").touch()
    for stem in ("kind-killed", "kind-running", STEM):
        claim_of(tmp_path, stem).touch()
        list_of(tmp_path, stem).touch()
    with claim_of(tmp_path, "kind-running").open("rb") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        prune(tmp_path, STEM)
    assert len(list(tmp_path.glob("*.failed"))) == FAILURES_MAX
    stems = {path.stem for path in tmp_path.glob("*.claim")}
    assert stems == {path.stem for path in tmp_path.glob("*.classes")} == {"kind-running", STEM}
