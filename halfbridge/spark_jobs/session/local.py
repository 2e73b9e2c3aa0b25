"""The one place that makes a Spark session."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from halfbridge import environment
from halfbridge.java.class_archive import ClassArchive, class_archive
from halfbridge.java.jvm import (
    JAVA_HOME,
    Java,
    JavaSettings,
    find_java,
)
from halfbridge.java.locked_jars import JarSettings
from halfbridge.spark_jobs.session.jars import (
    brings_connector,
    connector_jars,
    scala_of,
    table_jars,
)
from halfbridge.spark_jobs.tables.storage import jvm_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

VECTOR_MODULE = "jdk.incubator.vector"  # Spark 4.1's launcher asks for it
_JARS = "spark.jars"
_CLASS_PATH = "spark.driver.extraClassPath"
# Spark puts them in front of spark.driver.extraJavaOptions, which users set.
_JVM_FLAGS = "spark.driver.defaultJavaOptions"
_PYSPARK_PYTHON = "PYSPARK_PYTHON"
# Set for a driver that spark-submit or a Connect client started: the platform owns its session.
_PLATFORM = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
# What else Spark's launcher puts on the driver's class path.
_CLASS_PATH_VARIABLES = (
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
)
# Avro's decoder allocates what a length says before it reads: six bytes of a damaged record ended
# the JVM, for no job survives an OutOfMemoryError. Above these it throws what from_avro makes null
# of. Each is 64 MiB, more than records of Kafka have.
_AVRO_LIMITS = (
    f"-Dorg.apache.avro.limits.string.maxLength={64 << 20}",
    f"-Dorg.apache.avro.limits.bytes.maxLength={64 << 20}",
    f"-Dorg.apache.avro.limits.collectionItems.maxLength={16 << 20}",  # 4 bytes each, at first
)

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
    # The default without kafka: a batch read by the newer of Spark's two readers, as a stream's is,
    # takes 12 to 16 % less (a million records of 1 KB).
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    "spark.sql.shuffle.partitions": "8",  # 200, Spark's default, is a cluster's
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """What the environment says about a local session."""

    java: JavaSettings
    jars: JarSettings
    python: str  # of Spark's Python workers
    class_path: tuple[str, ...]  # what Spark's launcher adds to the driver's

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> LocalSettings:
        """Return the settings in `environ`.

        Raises:
            SettingError: a variable has a wrong value; the user corrects it.
        """
        return cls(
            java=JavaSettings.from_environ(environ),
            jars=JarSettings.from_environ(environ),
            python=environ.get(_PYSPARK_PYTHON) or sys.executable,
            class_path=tuple(environ.get(name, "") for name in _CLASS_PATH_VARIABLES),
        )


def local_options(
    jars: Sequence[Path], options: Mapping[str, str], *, jvm_flags: Sequence[str] = ()
) -> dict[str, str]:
    """Return all options of a local session; `options` win over ours.

    Where `options` bring the connector, its `jars` are left out. `jvm_flags` are for the driver's
    JVM, besides those that options name.
    """
    ours = dict(LOCAL_OPTIONS)
    if not brings_connector(options):
        ours[_JARS] = ",".join(jar.as_uri() for jar in jars)
        # An archive has what the JVM's own class path has, and no class of spark.jars; executors
        # on other machines need these.
        ours[_CLASS_PATH] = os.pathsep.join(map(str, jars))
    made = {**ours, **options}
    if jvm_flags:
        given = [made[_JVM_FLAGS]] if _JVM_FLAGS in made else []
        made[_JVM_FLAGS] = " ".join([*given, *map(_quoted, jvm_flags)])
    return made


def _quoted(flag: str) -> str:
    """Return a flag as Spark's launcher splits options: a path may have spaces."""
    escaped = flag.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def platform_owns_session(environ: Mapping[str, str]) -> bool:
    """Return whether spark-submit or Spark Connect decides master, jars and Python."""
    return any(environ.get(name) for name in _PLATFORM)


@contextmanager
def spark_session(
    app_name: str, *, options: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session that reads Kafka, for the time of the block.

    A session that is there already (a notebook's) is yielded as it is and not stopped. Under
    spark-submit and Spark Connect nothing is added: master, jars and Python are the platform's.
    Otherwise a local one is made, with the jars of the connector and of the table formats whose
    catalogs `options` name, this very Python for its workers, and `options` over LOCAL_OPTIONS.

    Raises:
        JarsError, JavaNotFoundError: a local session cannot be made; the user must act.
        SettingError: a variable of a local session has a wrong value; the user corrects it.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    environ = environment.variables()
    if platform_owns_session(environ):
        session = SparkSession.builder.appName(app_name).getOrCreate()
        try:
            yield session
        finally:
            session.stop()
        return
    settings = LocalSettings.from_environ(environ)
    with _local_session(app_name, options or {}, settings) as session:
        yield session


@contextmanager
def _local_session(
    app_name: str, options: Mapping[str, str], settings: LocalSettings
) -> Iterator[SparkSession]:
    java = find_java(settings.java, module=VECTOR_MODULE)
    home = Path(_find_spark_home())  # type: ignore[no-untyped-call]  # it has no types
    jars: tuple[Path, ...] = ()
    if not brings_connector(options):
        version, scala = pyspark.__version__, scala_of(home)
        jars = (
            *connector_jars(version, settings.jars, scala=scala),
            *table_jars(version, settings.jars, options, scala=scala),
        )
    with _driver_archive(java, home, local_options(jars, options), settings) as archive:
        builder = SparkSession.builder.appName(app_name)
        flags = [*_AVRO_LIMITS, *archive.flags]
        for name, value in local_options(jars, options, jvm_flags=flags).items():
            builder = builder.config(name, value)
        # PySpark takes both from the environment only, while the session is made.
        with environment.changed({JAVA_HOME: str(java.home), _PYSPARK_PYTHON: settings.python}):
            session = builder.getOrCreate()
        try:
            class_path = _class_path(session) if archive.records else ""
            yield session
        finally:
            session.stop()
        # After the job, so that the archive has all classes that it needed.
        archive.make_in_background(class_path, f"--add-modules={VECTOR_MODULE}")


def _driver_archive(
    java: Java, home: Path, options: Mapping[str, str], settings: LocalSettings
) -> ClassArchive:
    """Return the archive of the driver's class path, as far as it is known before the start.

    What is overlooked makes an archive that does not fit, and a JVM that reads its classes itself.
    """
    given = options.get(_CLASS_PATH, "")
    jars = [*map(Path, given.split(os.pathsep)), *sorted(home.glob("jars/*.jar"))]
    others = (str(home), *settings.class_path)
    return class_archive("spark", java, jars, *others, settings=settings.jars)


def _class_path(session: SparkSession) -> str:
    """Return what Spark's launcher made the driver's class path of."""
    return str(jvm_of(session).java.lang.System.getProperty("java.class.path"))
