"""Jars of a Kafka broker and of Kafka Connect, each with the log binding that its slf4j takes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge.serde.settings import load
from halfbridge.spark_jobs.session.ivy import resolve
from halfbridge.testkit.choice import VERSION_VARIABLE, KafkaChoice
from halfbridge.testkit.locked_jars import lock_of, locked_jars

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class _LogBinding:
    """What makes slf4j write a file, for one major version of Kafka."""

    coordinate: str
    option: str
    config: str


# Kafka 4 brings log4j 2.25.3 and slf4j 1.7; Kafka 3 is written against the log4j 1 API.
_LOG_BINDINGS = {
    3: _LogBinding("org.slf4j:slf4j-reload4j:1.7.36", "log4j.configuration", "log4j.properties"),
    4: _LogBinding(
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3",
        "log4j2.configurationFile",
        "log4j2.xml",
    ),
}


# Of Kafka Connect, and the databases whose connectors were tried with it.
_CONNECT_VERSION = "4.2.0"
CONNECTORS = ("postgres", "mysql", "mariadb")


@dataclass(frozen=True, slots=True)
class BrokerJars:
    """A class path on which `kafka.Kafka` runs and logs into a file."""

    version: str
    jars: tuple[Path, ...]
    log_option: str

    @property
    def class_path(self) -> str:
        """Return the jars as Java's CLASSPATH takes them."""
        return os.pathsep.join(map(str, self.jars))


def kafka_version(environ: Mapping[str, str] | None = None) -> str:
    """Return HALFBRIDGE_KAFKA_VERSION, else the pinned version."""
    return load(KafkaChoice, environ=os.environ if environ is None else environ).kafka_version


def broker_jars(version: str | None = None, cache_dir: Path | None = None) -> BrokerJars:
    """Return the jars of Kafka `version`, fetched on first use (45 MB), then from the cache.

    A version with a lock file is fetched by that; any other one is resolved by Ivy, which needs
    pyspark.

    Raises:
        ValueError: a version that is not 3.x or 4.x; the caller's mistake.
        JarsError, JavaNotFoundError: as `locked_jars` or `resolve`; the user must act.
    """
    wanted = version or kafka_version()
    coordinates, binding = coordinates_of(wanted), _binding(wanted)
    if (lock := lock_of(wanted)) is not None:
        jars = locked_jars(lock, cache_dir)
    else:
        jars = resolve(coordinates, cache_dir, transitive=True)
    config = (_HERE / binding.config).as_uri()
    return BrokerJars(wanted, jars, f"-D{binding.option}={config}")


def connect_jars(cache_dir: Path | None = None) -> BrokerJars:
    """Return the jars of a Kafka Connect worker, fetched on first use (37 MB).

    The Kafka of the broker may be another version.

    Raises:
        JarsError: as `locked_jars`; the user must act.
    """
    jars = locked_jars(_HERE / f"connect-{_CONNECT_VERSION}.lock", cache_dir)
    binding = _binding(_CONNECT_VERSION)
    config = (_HERE / binding.config).as_uri()
    return BrokerJars(_CONNECT_VERSION, jars, f"-D{binding.option}={config}")


def connector_jars(cache_dir: Path | None = None) -> dict[str, tuple[Path, ...]]:
    """Return the jars of each of Debezium's connectors, fetched on first use (23 MB).

    Kafka Connect isolates plugins by directory: connectors of different versions do not run in one.

    Raises:
        JarsError: as `locked_jars`; the user must act.
    """
    return {each: locked_jars(_HERE / f"debezium-{each}.lock", cache_dir) for each in CONNECTORS}


def coordinates_of(version: str) -> tuple[str, str]:
    """Return what is resolved, with dependencies, for a Kafka version: Kafka, and its log binding.

    Raises:
        ValueError: a version that is not 3.x or 4.x; the caller's mistake.
    """
    return f"org.apache.kafka:kafka_2.13:{version}", _binding(version).coordinate


def _binding(version: str) -> _LogBinding:
    major = version.split(".", 1)[0]
    binding = _LOG_BINDINGS.get(int(major)) if major.isdecimal() else None
    if binding is None:
        raise ValueError(f"Kafka {version!r} is not known: {VERSION_VARIABLE} takes 3.x or 4.x")
    return binding
