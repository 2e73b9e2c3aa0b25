"""What a session is made of; no JVM of Spark's is started here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halfbridge.spark_jobs.session.jvm import JavaNotFoundError
from halfbridge.spark_jobs.session.local import (
    LOCAL_OPTIONS,
    _environment,
    find_spark_java,
    local_options,
    platform_owns_session,
)


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


def test_reduced_java_is_refused(tmp_path: Path) -> None:
    """A Java of the right version that lacks Spark's module is named, with what to do."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        '#!/bin/sh\n[ "$1" = --add-modules ] && exit 1\necho \'version "21.0.1"\' >&2\n'
    )
    java.chmod(0o755)
    with pytest.raises(JavaNotFoundError, match=f"{java}: .*jdk.incubator.vector.*JAVA_HOME"):
        find_spark_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})


def test_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PySpark needs in the environment stays there only while the session is made."""
    monkeypatch.setenv("HALFBRIDGE_A", "before")
    monkeypatch.delenv("HALFBRIDGE_B", raising=False)
    with _environment({"HALFBRIDGE_A": "1", "HALFBRIDGE_B": "2"}):
        assert (os.environ["HALFBRIDGE_A"], os.environ["HALFBRIDGE_B"]) == ("1", "2")
    assert os.environ["HALFBRIDGE_A"] == "before"
    assert "HALFBRIDGE_B" not in os.environ
