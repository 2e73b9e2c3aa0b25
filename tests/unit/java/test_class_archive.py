"""Class data archives: who records, what a JVM is given, and that nothing stops a start."""

import fcntl
import os
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest

from halfbridge.java import archive_maker
from halfbridge.java.archive_maker import (
    ARCHIVES_BYTES_MAX,
    FAILURES_MAX,
    archive_of,
    claim_of,
    failure_of,
    list_of,
    make,
    prune,
)
from halfbridge.java.class_archive import DIRECTORY, ClassArchive, class_archive
from halfbridge.java.jvm import Java, JavaNotFoundError, JavaSettings, find_java
from halfbridge.java.locked_jars import JarSettings
from halfbridge.serde.settings import SettingError
from halfbridge.testkit.pytest_plugin import leave_out
from tests.kit.waiting import until

MADE = "made\n"


def stub(directory: Path, script: str) -> Java:
    """A Java that does what `script` says; $archive is the path of the archive."""
    path = directory / "bin" / "java"
    path.parent.mkdir(exist_ok=True)
    find = 'for word; do archive="${word#-XX:SharedArchiveFile=}"; done\n'
    path.write_text(f"#!/bin/sh\n{find}{script}\n")
    path.chmod(0o755)
    return Java(path, 17)


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    """A jar with nothing in it but its manifest."""
    path = tmp_path / "some.jar"
    with ZipFile(path, "w") as opened:
        opened.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty cache directory whose name has a space."""
    return tmp_path / "the cache"


def made(archive: ClassArchive) -> Path | None:
    """The archive, once it is there."""
    return archive_maker.archive_of(archive.directory, archive.stem)


def test_one_process_at_a_time_records(tmp_path: Path, jar: Path, cache: Path) -> None:
    """The first of two JVMs records, the second is given no flags; after a release it records."""
    java = stub(tmp_path, "exit 0")
    with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as first:
        assert first.records
        assert first.flags[0].startswith("-XX:DumpLoadedClassList=")
        with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as second:
            assert (second.flags, second.records) == ((), False)
    with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as third:
        assert third.records


@pytest.mark.process
def test_what_was_recorded_becomes_an_archive(tmp_path: Path, jar: Path, cache: Path) -> None:
    """It is made behind the caller's back, and while it is made nobody else records."""
    java = stub(tmp_path, 'printf "made\\n" >"$archive"')
    with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as recording:
        archive_maker.list_of(recording.directory, recording.stem).write_text("java/lang/Object\n")
        recording.make_in_background(str(jar))
    until("the archive is made", lambda: made(recording))
    suffixes = {".jsa", ".claim", ".lock"}
    until(
        "what the maker wrote besides is gone",
        lambda: {each.suffix for each in recording.directory.iterdir()} == suffixes,
    )
    with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as later:
        assert later.flags == (f"-XX:SharedArchiveFile={made(recording)}", "-Xshare:auto")
        assert not later.records


@pytest.mark.process
def test_a_jvm_maps_what_another_one_recorded(jar: Path, cache: Path) -> None:
    """A real Java takes both kinds of flags: it does not start where the archive does not fit."""
    try:
        java = find_java(JavaSettings.from_environ(os.environ))
    except JavaNotFoundError as error:
        leave_out(str(error))
    command = [str(java.executable), "-cp", str(jar)]
    with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as recording:
        subprocess.run([*command, *recording.flags, "-version"], check=True, capture_output=True)
        words = recording.directory, recording.stem, str(java.executable), str(jar)
        archive_maker.make(*words)
    with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as later:
        assert not later.records
        strict = [*later.flags, "-Xshare:on", "-version"]
        subprocess.run([*command, *strict], check=True, capture_output=True)


def test_a_damaged_archive_is_recorded_anew(tmp_path: Path, jar: Path, cache: Path) -> None:
    """One that was cut off is not given to a JVM: Java 17 crashes on it."""
    java = stub(tmp_path, "exit 0")
    with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as recording:
        path = recording.directory / f"{recording.stem}-{len(MADE)}.jsa"
    path.write_text(MADE)
    assert (
        class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache))
        .flags[0]
        .endswith(str(path))
    )
    path.write_text(MADE[1:])
    with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as again:
        assert again.records


def test_each_class_path_and_each_setting_has_its_own(
    tmp_path: Path, jar: Path, cache: Path
) -> None:
    """A jar that was replaced, another Java and another setting each have another archive."""
    java = stub(tmp_path, "exit 0")

    def stem(*others: str) -> str:
        with class_archive(
            "kind", java, [jar], *others, settings=JarSettings(cache_dir=cache)
        ) as archive:
            return archive.stem

    stems = [stem(), stem("other")]
    jar.write_bytes(b"another jar")
    stems.append(stem())
    modules = tmp_path / "lib" / "modules"
    modules.parent.mkdir()
    modules.write_text("another Java at the same place")
    stems.append(stem())
    assert len(set(stems)) == 4
    assert stem() == stems[-1]


def test_archives_can_be_switched_off(tmp_path: Path, jar: Path, cache: Path) -> None:
    """With `off` a JVM starts as it did before there were archives, and nothing is written."""
    java = stub(tmp_path, "exit 0")
    off = {"HALFBRIDGE_CACHE_DIR": str(cache), "HALFBRIDGE_CLASS_ARCHIVES": "off"}
    settings = JarSettings.from_environ(off)
    assert class_archive("kind", java, [jar], settings=settings).flags == ()
    assert not cache.exists()
    with pytest.raises(SettingError, match=r"HALFBRIDGE_CLASS_ARCHIVES.*off or on"):
        JarSettings.from_environ({"HALFBRIDGE_CLASS_ARCHIVES": "perhaps"})


def test_a_cache_that_cannot_be_written_stops_no_start(tmp_path: Path, jar: Path) -> None:
    """Without a place for the archive the JVM gets no flags."""
    java = stub(tmp_path, "exit 0")
    assert class_archive("kind", java, [jar], settings=JarSettings(cache_dir=jar)).flags == ()
    kept = tmp_path / "cache" / DIRECTORY
    kept.parent.mkdir()
    kept.write_text("in the way")
    assert (
        class_archive("kind", java, [jar], settings=JarSettings(cache_dir=kept.parent)).flags == ()
    )


@pytest.mark.process
def test_what_cannot_be_made_is_not_tried_again(tmp_path: Path, jar: Path, cache: Path) -> None:
    """A Java that refuses leaves its reason beside the archives, and later JVMs no work."""
    java = stub(tmp_path, "echo cannot have directories in paths; exit 3")
    with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as recording:
        archive_maker.list_of(recording.directory, recording.stem).write_text("java/lang/Object\n")
        recording.make_in_background(str(jar))
    failure = archive_maker.failure_of(recording.directory, recording.stem)
    until(
        "the maker has failed",
        lambda: failure.exists() and "directories in paths" in failure.read_text(),
    )
    assert class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)).flags == ()


def test_the_archive_in_use_is_the_last_to_go(tmp_path: Path, jar: Path, cache: Path) -> None:
    """A start that maps an archive makes it the one that was used last."""
    java = stub(tmp_path, "exit 0")
    with class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache)) as recording:
        path = recording.directory / f"{recording.stem}-{len(MADE)}.jsa"
    path.write_text(MADE)
    os.utime(path, (0, 0))
    class_archive("kind", java, [jar], settings=JarSettings(cache_dir=cache))
    assert path.stat().st_mtime > 0


# --- the maker of class data archives: what it hands to Java, what it keeps, what it removes

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


@pytest.mark.process
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


@pytest.mark.process
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
