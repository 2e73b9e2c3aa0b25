"""Which jars Spark gets: the pinned ones, or those of a directory, or one clear error."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from halfbridge.spark_jobs.session import jars
from halfbridge.spark_jobs.session.ivy import JarsError
from halfbridge.spark_jobs.session.jar_settings import JARS_VARIABLE
from halfbridge.spark_jobs.session.jars import connector_jars, pinned_connector


def test_the_pins_fit_the_installed_spark() -> None:
    """connector.toml is for the Spark that the extra installs, and names each artifact once."""
    connector = pinned_connector()
    assert pyspark.__version__.startswith(f"{connector.spark}.")
    artifacts = [coordinate.split(":")[1] for coordinate in connector.coordinates]
    assert sorted(artifacts) == [
        "commons-pool2",
        "kafka-clients",
        "spark-avro_2.13",
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
    ]


def test_pinned_jars_come_without_their_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the wheel already holds is not fetched in another version."""
    asked: list[object] = []

    def resolve(coordinates: object, cache_dir: object, *, transitive: bool) -> tuple[Path, ...]:
        asked.append((coordinates, cache_dir, transitive))
        return (Path("/jar"),)

    monkeypatch.setattr(jars, "resolve", resolve)
    assert connector_jars("4.1.1", environ={}, cache_dir=tmp_path) == (Path("/jar"),)
    assert asked == [(pinned_connector().coordinates, tmp_path, False)]


def test_directory_of_ones_own_replaces_the_pins(tmp_path: Path) -> None:
    """All its jars, by name, whatever the version of Spark; other files are left alone."""
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).touch()
    found = connector_jars("9.0.0", environ={JARS_VARIABLE: str(tmp_path)})
    assert found == (tmp_path / "a.jar", tmp_path / "b.jar")


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_directory_without_jars_is_an_error(tmp_path: Path, name: str) -> None:
    """The error names the variable and the directory."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(JarsError, match=f"{JARS_VARIABLE}=.*{name}"):
        connector_jars("4.1.1", environ={JARS_VARIABLE: str(tmp_path / name)})


@pytest.mark.parametrize("version", ["4.0.2", "4.10.0", "3.5.9", "5.1.1"])
def test_other_spark_is_refused(version: str) -> None:
    """A connector for another feature version would fail at run time with a riddle."""
    with pytest.raises(JarsError, match=f"Spark {version} .* {JARS_VARIABLE}"):
        connector_jars(version, environ={})


def test_jars_are_printed_for_spark_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, separated by commas, as --jars takes it; an error is one line and status 1."""
    for name in ("a.jar", "b.jar"):
        (tmp_path / name).touch()
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    jars.main()
    assert capsys.readouterr().out == f"{tmp_path}/a.jar,{tmp_path}/b.jar\n"
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(SystemExit, match=JARS_VARIABLE):
        jars.main()
