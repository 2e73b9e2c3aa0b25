"""Which jars Spark gets: the pinned ones, or those of a directory, or one clear error."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from halfbridge.spark_jobs.session import jars
from halfbridge.spark_jobs.session.jars import CONNECTOR_LOCK, CONNECTOR_SPARK, connector_jars
from halfbridge.spark_jobs.session.locked_jars import JARS_VARIABLE, JarsError, read_lock


def test_the_pins_fit_the_installed_spark() -> None:
    """The locked jars are for the Spark that the extra installs; each artifact is named once."""
    assert pyspark.__version__.startswith(f"{CONNECTOR_SPARK}.")
    artifacts = [each.coordinate.split(":")[1] for each in read_lock(CONNECTOR_LOCK)]
    assert sorted(artifacts) == [
        "commons-pool2",
        "kafka-clients",
        "spark-avro_2.13",
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
    ]


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
