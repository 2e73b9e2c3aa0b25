"""Options of a local session, and which jars Spark gets."""

import os
from pathlib import Path

import pyspark
import pytest

from halfbridge import environment
from halfbridge.java.locked_jars import (
    JARS_VARIABLE,
    JarsError,
    JarSettings,
    read_lock,
)
from halfbridge.spark_jobs.session import jars
from halfbridge.spark_jobs.session.jars import (
    CONNECTORS,
    TABLE_FORMATS,
    brings_connector,
    connector_jars,
    connector_lock,
    packages,
    scala_of,
    table_jars,
)
from halfbridge.spark_jobs.session.local import (
    LOCAL_OPTIONS,
    local_options,
    platform_owns_session,
)


def test_the_pins_fit_the_installed_spark() -> None:
    """There are pinned jars for the Spark that the tests run with, and for its Scala."""
    scala = scala_of(Path(pyspark.__file__).parent)
    assert connector_lock(pyspark.__version__, scala) is not None


@pytest.mark.parametrize("lock", sorted(CONNECTORS.glob("*.lock")), ids=lambda lock: lock.stem)
def test_each_line_has_its_connector(lock: Path) -> None:
    """Each artifact is named once, for the file's Scala and no other."""
    _, scala = lock.stem.split("_")
    artifacts = [each.coordinate.split(":")[1] for each in read_lock(lock)]
    assert sorted(artifacts) == [
        "commons-pool2",
        "kafka-clients",
        f"spark-avro_{scala}",
        f"spark-sql-kafka-0-10_{scala}",
        f"spark-token-provider-kafka-0-10_{scala}",
    ]


@pytest.mark.parametrize(
    ("spark", "scala", "found"),
    [
        ("3.5.9", None, "3.5_2.12.lock"),  # as PyPI has it
        ("3.5.2-amzn-0", "2.13", "3.5_2.13.lock"),
        ("4.0.5", "2.13", "4.0_2.13.lock"),
        ("4.3.0", None, "4.3_2.13.lock"),
    ],
)
def test_a_connector_is_found_by_line_and_scala(spark: str, scala: str | None, found: str) -> None:
    """A vendor's suffix and the patch release do not matter; Scala does, where it is known."""
    assert connector_lock(spark, scala) == CONNECTORS / found


def test_scala_is_read_from_sparks_own_jars(tmp_path: Path) -> None:
    """By the name of its library; a Spark without one tells nothing."""
    assert scala_of(tmp_path) is None
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "scala-library-2.12.18.jar").touch()
    assert scala_of(tmp_path) == "2.12"


def test_packages_are_of_the_very_release() -> None:
    """For --packages of spark-submit; without a version of Scala, that of PyPI's."""
    assert packages("3.5.6-amzn-0") == (
        "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.6,org.apache.spark:spark-avro_2.12:3.5.6"
    )
    assert packages("4.4.0", "2.13").endswith(",org.apache.spark:spark-avro_2.13:4.4.0")
    with pytest.raises(JarsError, match="neither its release nor its Scala"):
        packages("5.0.0")


@pytest.mark.parametrize(
    ("options", "brings"),
    [
        ({}, False),
        ({"spark.jars": "/mine.jar"}, True),
        ({"spark.jars.packages": "io.delta:delta-spark_4.1_2.13:4.1.0"}, False),
        ({"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.4.0"}, True),
    ],
)
def test_a_connector_of_the_users_own(options: dict[str, str], *, brings: bool) -> None:
    """Packages that add something else leave the pinned connector in place."""
    assert brings_connector(options) is brings
    assert ("spark.jars" in local_options([Path("/x.jar")], options)) is (
        not brings or "spark.jars" in options
    )


def test_directory_of_ones_own_replaces_the_pins(tmp_path: Path) -> None:
    """All its jars, by name, whatever the version of Spark; other files are left alone."""
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).touch()
    found = connector_jars("9.0.0", JarSettings(spark_jars=tmp_path))
    assert found == (tmp_path / "a.jar", tmp_path / "b.jar")


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_directory_without_jars_is_an_error(tmp_path: Path, name: str) -> None:
    """The error names the variable and the directory."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(JarsError, match=f"{JARS_VARIABLE}=.*{name}"):
        connector_jars("4.1.1", JarSettings(spark_jars=tmp_path / name))


@pytest.mark.parametrize("version", ["3.4.9", "4.10.0", "5.1.1"])
def test_other_spark_is_refused(version: str) -> None:
    """A connector for another feature version would fail at run time with a riddle."""
    with pytest.raises(
        JarsError, match=f"Spark {version} .* 3.5 .* spark.jars.packages=.* {JARS_VARIABLE}"
    ):
        connector_jars(version, JarSettings())
    with pytest.raises(JarsError, match=r"Spark 4\.1\.1 \(Scala 2\.12\)"):
        connector_jars("4.1.1", JarSettings(), scala="2.12")


ICEBERG = {"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog"}
DELTA = {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}


@pytest.mark.parametrize(
    ("options", "locks"),
    [
        ({}, []),
        (ICEBERG, ["iceberg"]),
        ({**ICEBERG, **DELTA}, ["iceberg", "delta"]),
        ({"spark.sql.catalog.lake.catalog-impl": "org.apache.iceberg.rest.RESTCatalog"}, []),
        ({**ICEBERG, "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-x:1"}, []),
        ({**DELTA, "spark.jars.packages": "io.delta:delta-spark_4.1_2.13:4.1.0"}, []),
    ],
)
def test_catalogs_bring_the_jars_of_their_format(
    tmp_path: Path, options: dict[str, str], locks: list[str]
) -> None:
    """Options name a catalog's class, and no package that has it."""
    settings = JarSettings(cache_dir=tmp_path)
    wanted = [each for name in locks for each in read_lock(TABLE_FORMATS / f"{name}-4.1_2.13.lock")]
    for each in wanted:
        jar = tmp_path / "jars" / each.path
        jar.parent.mkdir(parents=True)
        with jar.open("wb") as file:
            file.truncate(each.size_bytes)
    found = table_jars("4.1.1", settings, options, scala="2.13")
    assert found == tuple(tmp_path / "jars" / each.path for each in wanted)


def test_a_format_without_jars_for_this_spark_is_refused(tmp_path: Path) -> None:
    """The error says how to name them; a directory of one's own is believed to have them."""
    with pytest.raises(JarsError, match=r"iceberg-spark-runtime .* 9\.0\.0.* spark.jars.packages="):
        table_jars("9.0.0", JarSettings(), ICEBERG)
    assert table_jars("9.0.0", JarSettings(spark_jars=tmp_path), ICEBERG) == ()


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
    monkeypatch.setenv("HALFBRIDGE_CLASS_ARCHIVES", "perhaps")
    with pytest.raises(SystemExit, match="HALFBRIDGE_CLASS_ARCHIVES"):
        jars.main()


# --- what a session is made of; no JVM of Spark's is started here --------------------------


def test_local_options_carry_the_jars() -> None:
    """Jars are URIs, so that a comma or a space in a path separates nothing."""
    options = local_options([Path("/a b/x.jar"), Path("/y.jar")], {})
    assert options == {
        **LOCAL_OPTIONS,
        "spark.jars": "file:///a%20b/x.jar,file:///y.jar",
        "spark.driver.extraClassPath": "/a b/x.jar:/y.jar",
    }


def test_jars_of_the_caller_replace_the_connectors() -> None:
    """Who names jars has no other version of the same classes in front of them."""
    options = local_options([Path("/x.jar")], {"spark.jars": "/mine.jar"})
    assert options == {**LOCAL_OPTIONS, "spark.jars": "/mine.jar"}


def test_flags_for_the_jvm_stand_behind_the_callers() -> None:
    """Spark's launcher splits options at spaces, but not within quotes."""
    given = {"spark.driver.defaultJavaOptions": "-Xss2m"}
    options = local_options([], given, jvm_flags=['-XX:File=/a b/"c', "-Xshare:auto"])
    expected = '-Xss2m "-XX:File=/a b/\\"c" "-Xshare:auto"'
    assert options["spark.driver.defaultJavaOptions"] == expected


def test_given_options_win() -> None:
    """A caller may change any of our defaults."""
    assert local_options([], {"spark.master": "local[2]"})["spark.master"] == "local[2]"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"PYSPARK_GATEWAY_PORT": ""}, False),
        ({"PYSPARK_GATEWAY_PORT": "40001"}, True),
        ({"SPARK_REMOTE": "sc://there"}, True),
    ],
)
def test_platform_is_recognised(environ: dict[str, str], expected: bool) -> None:
    """spark-submit and Spark Connect are known by what they set for the driver."""
    assert platform_owns_session(environ) is expected


def test_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PySpark needs in the environment stays there only while the session is made."""
    monkeypatch.setenv("HALFBRIDGE_A", "before")
    monkeypatch.delenv("HALFBRIDGE_B", raising=False)
    with environment.changed({"HALFBRIDGE_A": "1", "HALFBRIDGE_B": "2"}):
        assert (os.environ["HALFBRIDGE_A"], os.environ["HALFBRIDGE_B"]) == ("1", "2")
    assert os.environ["HALFBRIDGE_A"] == "before"
    assert "HALFBRIDGE_B" not in os.environ
