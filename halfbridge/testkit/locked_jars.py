"""The jars of a Kafka version by its lock file: fetched by HTTP, each held to its checksum.

A lock file, `kafka-<version>.lock`, has a line for each jar, in class path order:
`<SHA-256> <bytes> <group>:<artifact>:<version>`. `python -m halfbridge.testkit.lock_jars` prints
one. Neither a JVM nor Ivy takes part.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.spark_jobs.session.ivy import JarsError, default_cache_dir, locked
from halfbridge.spark_jobs.session.jar_settings import CACHE_VARIABLE
from halfbridge.testkit.maven import REPOSITORY_VARIABLE, repositories

if TYPE_CHECKING:
    import urllib.request

    from halfbridge.testkit.maven import Repository

_HERE = Path(__file__).parent
_FETCHERS = 8  # jars at a time: most are small, so most of a fetch is waiting
_ATTEMPTS = 3  # with a pause before each: a repository that is down for seconds
_PAUSE_S = 0.5  # before an attempt that is not the first, doubled each time
_SOCKET_S_MAX = 30.0  # without a byte
_FETCH_S_MAX = 900.0  # for all jars, 48 MB: half a Mbit/s suffices
_CHUNK_BYTES = 256 * 1024  # memory of a fetcher
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LockedJar:
    """A line of a lock file."""

    sha256: str
    size_bytes: int
    coordinate: str

    @property
    def path(self) -> str:
        """Where a Maven repository has it, and our cache below `jars`."""
        group, artifact, version = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"

    def is_in(self, directory: Path) -> bool:
        """Tell whether it is there with its size; it was checked when it was put there."""
        file = directory / self.path
        return file.is_file() and file.stat().st_size == self.size_bytes


class _Source(NamedTuple):
    repository: Repository
    opener: urllib.request.OpenerDirector


def lock_of(version: str) -> Path | None:
    """Return the lock file of a Kafka version, or None where there is none."""
    path = _HERE / f"kafka-{version}.lock"
    return path if path.is_file() else None


def read_lock(path: Path) -> tuple[LockedJar, ...]:
    """Return the jars of a lock file, in class path order."""
    rows = (line.split() for line in path.read_text("utf-8").splitlines())
    return tuple(LockedJar(row[0], int(row[1]), row[2]) for row in rows if row and row[0] != "#")


def locked_jars(lock: Path, cache_dir: Path | None = None) -> tuple[Path, ...]:
    """Return the jars of a lock file in class path order, fetched at most once.

    Safe to call from several processes at once: one fetches, the others wait.

    Args:
        lock: As `lock_of` returns it.
        cache_dir: Where jars are kept; `default_cache_dir()` when not given.

    Raises:
        JarsError: one line with the cause and what to do; the user must act.
    """
    jars = read_lock(lock)
    cache = (cache_dir or default_cache_dir()).absolute()
    directory = cache / "jars"
    try:
        if not all(each.is_in(directory) for each in jars):
            directory.mkdir(parents=True, exist_ok=True)
            with locked(cache / "resolve.lock"):
                _fetch([each for each in jars if not each.is_in(directory)], directory)
    except OSError as error:
        raise JarsError(
            f"cannot use the cache directory {cache}: {error}. Set {CACHE_VARIABLE} to one that"
            " can be written."
        ) from error
    return tuple(directory / each.path for each in jars)


def _fetch(jars: list[LockedJar], directory: Path) -> None:
    if not jars:
        return  # another process has fetched them
    sources = [_Source(each, each.opener()) for each in repositories()]
    size_mb = sum(each.size_bytes for each in jars) / 1e6
    _log.info("fetching %d jars (%.0f MB) from %s", len(jars), size_mb, sources[0].repository.shown)
    deadline = time.monotonic() + _FETCH_S_MAX
    with ThreadPoolExecutor(_FETCHERS) as pool:
        fetching = [pool.submit(_fetch_one, each, directory, sources, deadline) for each in jars]
        try:
            for future in fetching:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _fetch_one(jar: LockedJar, directory: Path, sources: list[_Source], deadline: float) -> None:
    troubles: dict[str, None] = {}  # in order, each once
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S * 2 ** (attempt - 1))
        for source in sources:
            if time.monotonic() > deadline:
                troubles[f"not within {_FETCH_S_MAX:.0f} s"] = None
                break
            try:
                body = _body(jar, source)
            except (OSError, http.client.HTTPException, ValueError) as error:
                troubles[f"{source.repository.shown}: {error}"] = None
                continue
            _keep(body, directory / jar.path)
            return
    raise JarsError(
        f"cannot fetch {jar.coordinate}: {' | '.join(troubles)}. Check the network;"
        f" {REPOSITORY_VARIABLE} names a Maven repository, ~/.m2/settings.xml a mirror or a proxy,"
        " https_proxy a proxy."
    )


def _body(jar: LockedJar, source: _Source) -> bytes:
    """Return the jar's bytes.

    Raises:
        ValueError: other bytes than the lock file names.
        OSError: no answer, or another one than the file.
    """
    body = bytearray()
    request = source.repository.request(jar.path)
    with source.opener.open(request, timeout=_SOCKET_S_MAX) as answer:
        while len(body) <= jar.size_bytes and (chunk := answer.read(_CHUNK_BYTES)):
            body += chunk
    if len(body) != jar.size_bytes or hashlib.sha256(body).hexdigest() != jar.sha256:
        raise ValueError("not the file that the lock file names (size or SHA-256 differs)")
    return bytes(body)


def _keep(body: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(body)
    fresh.replace(path)  # atomic: a reader sees all of it or none
