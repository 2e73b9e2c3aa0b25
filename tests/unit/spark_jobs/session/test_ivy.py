"""Resolving jars: one JVM for many callers, nothing half-filled, errors of one line.

Ivy itself runs here, against a Maven repository in a temporary directory.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from halfbridge.spark_jobs.session import ivy
from halfbridge.spark_jobs.session.ivy import JarsError, default_cache_dir, resolve
from halfbridge.spark_jobs.session.jar_settings import CACHE_VARIABLE, SETTINGS_VARIABLE

APP, LIB = "example:app:1.0", "example:lib:1.0"
SETTINGS = """<ivysettings><settings defaultResolver="here"/><resolvers>
<ibiblio name="here" m2compatible="true" root="{root}"/></resolvers></ivysettings>"""
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>example</groupId>
<artifactId>{name}</artifactId><version>1.0</version><dependencies>{needs}</dependencies></project>"""
NEEDS_LIB = """<dependency><groupId>example</groupId><artifactId>lib</artifactId>
<version>1.0</version></dependency>"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which app needs lib, named by HALFBRIDGE_IVY_SETTINGS."""
    root = tmp_path / "repository"
    for name, needs in (("app", NEEDS_LIB), ("lib", "")):
        place = root / "example" / name / "1.0"
        place.mkdir(parents=True)
        (place / f"{name}-1.0.pom").write_text(POM.format(name=name, needs=needs))
        with zipfile.ZipFile(place / f"{name}-1.0.jar", "w") as jar:
            jar.writestr("content", name)
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(SETTINGS.format(root=root.as_uri()))
    monkeypatch.setenv(SETTINGS_VARIABLE, str(settings))
    return root


def names(jars: tuple[Path, ...]) -> list[str]:
    """Return file names in class path order."""
    return [jar.name for jar in jars]


def no_java(**_: object) -> None:
    """Stand in for the search for Java where no JVM may start."""
    pytest.fail("a JVM was about to start")


def test_transitive_or_not(repository: Path, tmp_path: Path) -> None:
    """Dependencies come along only when asked for; the coordinates' own jars always do."""
    cache = tmp_path / "cache"
    assert names(resolve([APP], cache, transitive=True)) == ["app-1.0.jar", "lib-1.0.jar"]
    assert names(resolve([APP], cache, transitive=False)) == ["app-1.0.jar"]
    assert names(resolve([LIB, APP], cache, transitive=False)) == ["lib-1.0.jar", "app-1.0.jar"]


def test_second_call_starts_no_jvm(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remembered result needs neither Java nor the repository."""
    first = resolve([APP], tmp_path / "cache", transitive=True)
    monkeypatch.setattr(ivy, "find_java", no_java)
    assert resolve([APP], tmp_path / "cache", transitive=True) == first


def test_half_filled_cache_is_resolved_again(repository: Path, tmp_path: Path) -> None:
    """A jar that is gone, one cut short and a broken record are all made good."""
    cache = tmp_path / "cache"
    app, lib = resolve([APP], cache, transitive=True)
    whole = lib.read_bytes()
    app.unlink()
    lib.write_bytes(whole[:10])
    assert resolve([APP], cache, transitive=True) == (app, lib)
    assert app.is_file()
    assert lib.read_bytes() == whole
    (record,) = (cache / "resolved").glob("*.json")
    record.write_text("{")
    assert resolve([APP], cache, transitive=True) == (app, lib)


def test_two_processes_at_once(repository: Path, tmp_path: Path) -> None:
    """Both get the same jars, and only one of them ran Ivy."""
    script = (
        "import logging, sys; from pathlib import Path;"
        "from halfbridge.spark_jobs.session.ivy import resolve;"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s');"
        f"print(*resolve([{APP!r}], Path({str(tmp_path / 'cache')!r}), transitive=True))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1]
    assert sum(line.startswith("fetching") for output in outputs for line in output) == 1


def test_unknown_coordinate_is_one_clear_line(repository: Path, tmp_path: Path) -> None:
    """The error names the coordinate, the cause and the two variables that may help."""
    with pytest.raises(JarsError) as caught:
        resolve(["example:absent:1.0"], tmp_path / "cache", transitive=True)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("example:absent:1.0", "not found", SETTINGS_VARIABLE, "JAVA_TOOL_OPTIONS"):
        assert part in message


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """A file where the directory should be is an error that names the variable to set."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(JarsError, match=CACHE_VARIABLE):
        resolve([APP], tmp_path / "cache", transitive=True)


@pytest.mark.parametrize("coordinates", [[], ["example:app"], ["a:b:c:d"], ["a:b c:1"]])
def test_malformed_coordinates(coordinates: list[str], tmp_path: Path) -> None:
    """Anything that is not group:artifact:version is refused before a JVM starts."""
    with pytest.raises(ValueError, match=r"coordinate|group:artifact"):
        resolve(coordinates, tmp_path, transitive=True)


def test_cache_directory_order() -> None:
    """HALFBRIDGE_CACHE_DIR wins over XDG_CACHE_HOME, which wins over the home directory."""
    both = {"HALFBRIDGE_CACHE_DIR": "/given", "XDG_CACHE_HOME": "/xdg"}
    assert default_cache_dir(both) == Path("/given")
    assert default_cache_dir({"XDG_CACHE_HOME": "/xdg"}) == Path("/xdg/halfbridge")
    assert default_cache_dir({}) == Path.home() / ".cache" / "halfbridge"
