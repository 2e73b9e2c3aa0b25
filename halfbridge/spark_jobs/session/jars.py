"""The connector's jars: the pinned ones of connector.lock, or a directory of one's own.

    spark-submit --jars "$(python -m halfbridge.spark_jobs.jars)" ...

prints them for spark-submit, fetched first where they are not in the cache yet.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge.spark_jobs.session.locked_jars import (
    JARS_VARIABLE,
    JarsError,
    jar_settings,
    locked_jars,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECTOR_LOCK = Path(__file__).with_name("connector.lock")
CONNECTOR_SPARK = "4.1"  # feature version of Spark that the locked jars were built for


def connector_jars(
    spark_version: str, *, environ: Mapping[str, str] | None = None, cache_dir: Path | None = None
) -> tuple[Path, ...]:
    """Return the jars with which Spark of that version reads Kafka and Avro.

    All jars of the directory HALFBRIDGE_SPARK_JARS, by name; without it the pinned ones, fetched on
    first use (10 MB), then from the cache.

    Raises:
        JarsError: no jars there, none to be had, or Spark is of another feature version than the
            pinned ones (Spark's internal interfaces differ); the user must act.
    """
    if own := jar_settings(environ).spark_jars:
        return _own_jars(own.expanduser())
    if spark_version.split(".")[:2] != CONNECTOR_SPARK.split("."):
        raise JarsError(
            f"Spark {spark_version} is installed, the pinned connector is for {CONNECTOR_SPARK}:"
            f" pip install 'halfbridge[spark]', or set {JARS_VARIABLE} to a directory with the"
            " jars of that version."
        )
    return locked_jars(CONNECTOR_LOCK, cache_dir)


def _own_jars(directory: Path) -> tuple[Path, ...]:
    jars = tuple(sorted(directory.absolute().glob("*.jar")))
    if not jars:
        raise JarsError(f"{JARS_VARIABLE}={directory} is no directory with jars in it")
    return jars


def main() -> None:
    """Print the jars for the installed Spark, separated by commas."""
    try:
        jars = connector_jars(importlib.metadata.version("pyspark"))
    except (JarsError, importlib.metadata.PackageNotFoundError) as error:
        sys.exit(f"halfbridge.spark_jobs.jars: {error}")
    sys.stdout.write(",".join(map(str, jars)) + "\n")
