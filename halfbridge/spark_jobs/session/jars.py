"""The connector's jars: the pinned ones of `connectors/`, or a directory of one's own.

    spark-submit --jars "$(python -m halfbridge.spark_jobs.jars)" ...
    spark-submit --packages "$(python -m halfbridge.spark_jobs.jars --packages)" ...

prints them for spark-submit. The first form fetches them where they are not in the cache yet; the
second one names those of exactly this Spark, for a repository that has them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge import environment
from halfbridge.java.locked_jars import (
    JARS_VARIABLE,
    JarsError,
    JarSettings,
    locked_jars,
)
from halfbridge.serde.settings import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A lock file for each feature version of Spark and each Scala that it is built for. Spark's
# internal interfaces differ between feature versions, not between the releases of one.
CONNECTORS = Path(__file__).with_name("connectors")
_CONNECTOR = "spark-sql-kafka-0-10"
_JARS = "spark.jars"
_PACKAGES = "spark.jars.packages"
# A lock file of the same kind for each table format whose catalogs a session names.
TABLE_FORMATS = Path(__file__).with_name("table_formats")
# How the names of a format's catalog classes begin: the format, and the artifact that has them.
_CATALOGS = {
    "org.apache.iceberg.": ("iceberg", "iceberg-spark-runtime"),
    "org.apache.spark.sql.delta.": ("delta", "delta-spark"),
}
_CATALOG = re.compile(r"spark\.sql\.catalog\.[^.]+")
_RELEASE = re.compile(r"\d+\.\d+\.\d+")  # without what vendors append


def connector_jars(
    spark_version: str, settings: JarSettings, *, scala: str | None = None
) -> tuple[Path, ...]:
    """Return the jars with which Spark of that version reads Kafka and Avro.

    All jars of the directory HALFBRIDGE_SPARK_JARS, by name; without it the pinned ones, fetched on
    first use (10 MB), then from the cache. `scala` is such as "2.13"; None: PyPI's.

    Raises:
        JarsError: no jars there, none could be fetched, or none are pinned for this Spark; the user
            must act.
    """
    if own := settings.spark_jars:
        return _own_jars(own.expanduser())
    lock = connector_lock(spark_version, scala)
    if lock is None:
        known = ", ".join(each.stem.replace("_", " (Scala ") + ")" for each in _locks())
        raise JarsError(
            f"Spark {spark_version} (Scala {scala or 'unknown'}) is installed; there are connectors"
            f" for {known}: take one of these, name the connector's packages with --spark-opt"
            f" {_PACKAGES}=..., or set {JARS_VARIABLE} to a directory with the jars of that"
            " version."
        )
    return locked_jars(lock, settings)


def table_jars(
    spark_version: str,
    settings: JarSettings,
    options: Mapping[str, str],
    *,
    scala: str | None = None,
) -> tuple[Path, ...]:
    """Return the jars of Iceberg and Delta, as far as options of a session name catalogs of theirs.

    None of a format that spark.jars.packages has, and none at all where HALFBRIDGE_SPARK_JARS has
    the jars. Fetched as `connector_jars` (Iceberg's has 48 MB).

    Raises:
        JarsError: a jar cannot be fetched, or this project pins none for this Spark; the user
            must act.
    """
    if settings.spark_jars:
        return ()
    classes = [value for name, value in options.items() if _CATALOG.fullmatch(name)]
    found: list[Path] = []
    for prefix, (kind, artifact) in _CATALOGS.items():
        named = any(each.startswith(prefix) for each in classes)
        if not named or artifact in options.get(_PACKAGES, ""):
            continue
        lock = _lock(sorted(TABLE_FORMATS.glob(f"{kind}-*.lock")), spark_version, scala)
        if lock is None:
            raise JarsError(
                f"no jar of {artifact} is pinned for Spark {spark_version}: name its package with"
                f" --spark-opt {_PACKAGES}=..."
            )
        found += locked_jars(lock, settings)
    return tuple(found)


def connector_lock(spark_version: str, scala: str | None = None) -> Path | None:
    """Return the lock file for a Spark; None without one. `scala` as of `connector_jars`."""
    return _lock(_locks(), spark_version, scala)


def _lock(locks: Iterable[Path], spark_version: str, scala: str | None) -> Path | None:
    line = ".".join(spark_version.split(".")[:2])
    for lock in locks:
        of_line, of_scala = lock.stem.rpartition("-")[2].split("_")
        if of_line == line and scala in (None, of_scala):
            return lock
    return None


def scala_of(spark_home: Path) -> str | None:
    """Return the Scala that a Spark was built for, such as "2.13"; None where no jar says it."""
    libraries = sorted(spark_home.glob("jars/scala-library-*.jar"))
    versions = [each.stem.rpartition("-")[2].split(".") for each in libraries]
    return ".".join(versions[0][:2]) if versions else None


def brings_connector(options: Mapping[str, str]) -> bool:
    """Tell whether options of a session name jars of their own, or the connector's package."""
    return _JARS in options or _CONNECTOR in options.get(_PACKAGES, "")


def packages(spark_version: str, scala: str | None = None) -> str:
    """Return the connector's coordinates, for `--packages` and `spark.jars.packages`.

    Raises:
        JarsError: the version is of no release; the user names the packages.
    """
    release, lock = _RELEASE.match(spark_version), connector_lock(spark_version, scala)
    scala = scala or (lock.stem.split("_")[1] if lock else None)
    if release is None or scala is None:
        raise JarsError(f"Spark {spark_version} tells neither its release nor its Scala")
    names = (_CONNECTOR, "spark-avro")
    return ",".join(f"org.apache.spark:{name}_{scala}:{release[0]}" for name in names)


def _locks() -> list[Path]:
    return sorted(CONNECTORS.glob("*.lock"))


def _own_jars(directory: Path) -> tuple[Path, ...]:
    jars = tuple(sorted(directory.absolute().glob("*.jar")))
    if not jars:
        raise JarsError(f"{JARS_VARIABLE}={directory} is no directory with jars in it")
    return jars


def main() -> None:
    """Print the jars for the installed Spark, separated by commas; with --packages their names."""
    try:
        import pyspark  # noqa: PLC0415  (an extra)
        from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415  (an extra)

        scala = scala_of(Path(_find_spark_home()))  # type: ignore[no-untyped-call]  # no types
        if "--packages" in sys.argv[1:]:
            found = packages(pyspark.__version__, scala)
        else:
            settings = JarSettings.from_environ(environment.variables())
            jars = connector_jars(pyspark.__version__, settings, scala=scala)
            found = ",".join(map(str, jars))
    except (JarsError, SettingError, ImportError) as error:
        sys.exit(f"halfbridge.spark_jobs.jars: {error}")
    sys.stdout.write(f"{found}\n")
