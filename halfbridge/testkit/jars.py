"""The choice of a Kafka, and the jars of a broker and of Kafka Connect, with a log binding.

    python -m halfbridge.testkit.jars 4.2.0 > halfbridge/testkit/kafka-4.2.0.lock
    python -m halfbridge.testkit.jars GROUP:ARTIFACT:VERSION...

prints a lock file, for maintainers.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge import environment
from halfbridge.extras import needs
from halfbridge.java.locked_jars import (
    JarsError,
    JarSettings,
    cache_of_jars,
    locked_jars,
    repository_url,
    sole_fetcher,
)
from halfbridge.serde.settings import load, setting, variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

KAFKA_VERSION = "4.2.0"
BOOTSTRAP_VARIABLE = variable("test_bootstrap")
DOCKER_VARIABLE = variable("test_docker")
IMAGE_VARIABLE = variable("test_image")
VERSION_VARIABLE = variable("kafka_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaChoice:
    """Settings of the testkit; each is an environment variable."""

    test_bootstrap: str = setting("", doc="host:port of a cluster that runs already.")
    test_docker: str = setting("", doc="1: Docker before the embedded broker; 0: never Docker.")
    test_image: str = setting("", doc="Image of the broker in Docker; default: the pinned one.")
    kafka_version: str = setting(KAFKA_VERSION, doc="Version of the embedded broker.")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> KafkaChoice:
        """Return the settings in `environ`."""
        return load(cls, environ=environ)


_HERE = Path(__file__).parent
_CONNECT_VERSION = "4.2.0"
# The databases whose connectors were tried with this Kafka Connect.
CONNECTORS = ("postgres", "mysql", "mariadb")


@dataclass(frozen=True, slots=True)
class _LogBinding:
    """The slf4j binding that writes a log file, for one major version of Kafka."""

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


def broker_jars(version: str, settings: JarSettings) -> BrokerJars:
    """Return the jars of Kafka `version`, fetched on first use (45 MB), then from the cache.

    The jars of a version without a lock file are resolved by jgo at each call, which takes seconds.

    Raises:
        ValueError: a version that is not 3.x or 4.x; the caller's mistake.
        JarsError: the user must act.
    """
    binding, lock = _binding(version), lock_of(version)
    if lock is not None:
        jars = locked_jars(lock, settings)
    else:
        jars = tuple(resolved(_coordinates_of(version), settings).values())
    config = (_HERE / binding.config).as_uri()
    return BrokerJars(version, jars, f"-D{binding.option}={config}")


def connect_jars(settings: JarSettings) -> BrokerJars:
    """Return the jars of a Kafka Connect worker, fetched on first use (37 MB); as `broker_jars`.

    The Kafka of the broker may be another version.
    """
    jars = locked_jars(_HERE / f"connect-{_CONNECT_VERSION}.lock", settings)
    binding = _binding(_CONNECT_VERSION)
    config = (_HERE / binding.config).as_uri()
    return BrokerJars(_CONNECT_VERSION, jars, f"-D{binding.option}={config}")


def connector_jars(settings: JarSettings) -> dict[str, tuple[Path, ...]]:
    """Return the jars of each of Debezium's connectors, fetched on first use (23 MB).

    Kafka Connect isolates plugins by directory: connectors of different versions do not run in one.
    """
    locks = {each: _HERE / f"debezium-{each}.lock" for each in CONNECTORS}
    return {each: locked_jars(lock, settings) for each, lock in locks.items()}


def lock_of(version: str) -> Path | None:
    """Return the lock file of a Kafka version, or None where there is none."""
    path = _HERE / f"kafka-{version}.lock"
    return path if path.is_file() else None


def resolved(coordinates: Sequence[str], settings: JarSettings) -> dict[str, Path]:
    """Return jars by coordinate, with their dependencies, as jgo resolves and fetches them.

    Their SHA-1 is compared with the one that the repository names.

    Raises:
        JarsError: jgo is not installed, or cannot fetch one of them; the user must act.
    """
    try:
        from jgo.maven import MavenContext  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise JarsError(needs("a version without a lock file", "jgo")) from error
    found: dict[str, Path] = {}
    versions: set[str] = set()  # group:artifact whose version is chosen
    # jgo fails on a file that another process puts there meanwhile.
    with cache_of_jars(settings) as directory, sole_fetcher(directory):
        maven = MavenContext(
            repo_cache=directory,
            local_repos=[],
            remote_repos={"maven": repository_url(settings)},
        )
        try:
            for coordinate in coordinates:  # one by one: jgo takes all versions from the first one
                wanted = maven.create_dependency(coordinate)
                for group in maven.resolver.resolve([wanted]):
                    for artifact in (each.artifact for each in group):
                        name = f"{artifact.groupId}:{artifact.artifactId}"
                        if name not in versions:
                            versions.add(name)
                            found[f"{name}:{artifact.version}"] = artifact.resolve()
        except (RuntimeError, OSError) as error:  # not found, another checksum, no network
            raise JarsError(f"cannot resolve {', '.join(coordinates)}: {error}") from error
    return found


def lock_lines(jars: Mapping[str, Path]) -> Iterable[str]:
    """Yield the lines of a lock file, in the order of `jars`."""
    for coordinate, jar in jars.items():
        body = jar.read_bytes()
        yield f"{hashlib.sha256(body).hexdigest()} {len(body)} {coordinate}\n"


def _coordinates_of(version: str) -> tuple[str, str]:
    """Return the coordinates to resolve for a Kafka version: Kafka itself, and its log binding."""
    return f"org.apache.kafka:kafka_2.13:{version}", _binding(version).coordinate


def _binding(version: str) -> _LogBinding:
    major = version.split(".", 1)[0]
    binding = _LOG_BINDINGS.get(int(major)) if major.isdecimal() else None
    if binding is None:
        raise ValueError(f"Kafka {version!r} is not known: {VERSION_VARIABLE} takes 3.x or 4.x")
    return binding


if __name__ == "__main__":
    _words = sys.argv[1:]
    _wanted = _words if ":" in _words[0] else _coordinates_of(_words[0])
    _settings = JarSettings.from_environ(environment.variables())
    sys.stdout.writelines(lock_lines(resolved(_wanted, _settings)))
