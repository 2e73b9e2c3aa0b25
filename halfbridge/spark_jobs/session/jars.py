"""The connector's jars: the pinned ones of connector.toml, or a directory of one's own.

    spark-submit --jars "$(python -m halfbridge.spark_jobs.jars)" ...

prints them for spark-submit, fetched first where they are not in the cache yet.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge.serde.settings import load
from halfbridge.spark_jobs.session.ivy import JarsError, resolve
from halfbridge.spark_jobs.session.jar_settings import JARS_VARIABLE, JarSettings
from halfbridge.spark_jobs.session.jvm import JavaNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_CONNECTOR = Path(__file__).with_name("connector.toml")


@dataclass(frozen=True, slots=True)
class Connector:
    """What connector.toml says.

    Attributes:
        spark: Feature version of Spark (`4.1`) that the jars were built for.
        coordinates: `group:artifact:version`, complete: no dependency is missing.
    """

    spark: str
    coordinates: tuple[str, ...]


def pinned_connector() -> Connector:
    """Return the coordinates that were tried together."""
    data = tomllib.loads(_CONNECTOR.read_text(encoding="utf-8"))
    return Connector(data["spark"], tuple(data["coordinates"]))


def connector_jars(
    spark_version: str, *, environ: Mapping[str, str] | None = None, cache_dir: Path | None = None
) -> tuple[Path, ...]:
    """Return the jars with which Spark reads Kafka and Avro.

    All jars of the directory HALFBRIDGE_SPARK_JARS, by name; without it the pinned ones, fetched
    on first use (10 MB), then from the cache.

    Args:
        spark_version: Version of the Spark that will load them.
        environ: Read instead of the process's environment.
        cache_dir: Where fetched jars are kept; `ivy.default_cache_dir()` when not given.

    Raises:
        JarsError: no jars there, none to be had, or Spark is of another feature version than the
            pinned ones (Spark's internal interfaces differ); the user must act.
        JavaNotFoundError: as `ivy.resolve`; the user must act.
    """
    if own := load(JarSettings, environ=os.environ if environ is None else environ).spark_jars:
        return _own_jars(own.expanduser())
    connector = pinned_connector()
    if spark_version.split(".")[:2] != connector.spark.split("."):
        raise JarsError(
            f"Spark {spark_version} is installed, the pinned connector is for {connector.spark}:"
            f" pip install 'halfbridge[spark]', or set {JARS_VARIABLE} to a directory with the"
            " jars of that version."
        )
    return resolve(connector.coordinates, cache_dir, transitive=False)


def _own_jars(directory: Path) -> tuple[Path, ...]:
    jars = tuple(sorted(directory.absolute().glob("*.jar")))
    if not jars:
        raise JarsError(f"{JARS_VARIABLE}={directory} is no directory with jars in it")
    return jars


def main() -> None:
    """Print the jars for the installed Spark, separated by commas."""
    try:
        jars = connector_jars(importlib.metadata.version("pyspark"))
    except (JarsError, JavaNotFoundError, importlib.metadata.PackageNotFoundError) as error:
        sys.exit(f"halfbridge.spark_jobs.jars: {error}")
    sys.stdout.write(",".join(map(str, jars)) + "\n")
