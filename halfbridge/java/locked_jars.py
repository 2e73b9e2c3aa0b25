"""Jars by a lock file: fetched by HTTP, each checked against its checksum, kept in a cache.

A lock file has a line for each jar, in class path order: `<SHA-256> <bytes>
<group>:<artifact>:<version>`. `python -m halfbridge.testkit.jars` prints one.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import logging
import os
import time
import urllib.error
import urllib.request
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from halfbridge.extras import needs
from halfbridge.serde.settings import load, setting, variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CACHE_VARIABLE = variable("cache_dir")
JARS_VARIABLE = variable("spark_jars")
REPOSITORY_VARIABLE = variable("maven_repository")
_XDG_CACHE_HOME = "XDG_CACHE_HOME"
_FETCHERS = 8  # jars at a time: most are small, so most of a fetch is waiting
_ATTEMPTS = 3  # with a pause before each: a repository that is down for seconds
_PAUSE_S = 0.5  # before an attempt that is not the first, doubled each time
_SOCKET_S_MAX = 30.0  # without a byte
_FETCH_S_MAX = 900.0  # for all jars, 67 MB at most: a Mbit/s suffices
_LOCK_S_MAX = _FETCH_S_MAX + 60.0  # another process may be fetching for all of its time
_LOCK_POLL_S = 0.1  # little compared with the seconds that a fetch takes
_CHUNK_BYTES = 256 * 1024  # memory of a fetcher
_log = logging.getLogger(__name__)


class JarsError(RuntimeError):
    """The jars cannot be fetched; the user must act: network, disk or repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSettings:
    """Settings of whatever needs jars: Spark, and the embedded broker."""

    cache_dir: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="Directory of fetched jars; default: halfbridge in the XDG cache directory."
    )
    maven_repository: str = setting(
        "",
        doc="Address of a Maven repository (https://, file://), for machines that cannot reach the"
        " central one; a user and a password may be part of it.",
    )
    class_archives: bool = setting(
        default=True,
        words=("off", "on"),
        doc="Whether JVMs start from class data archives, which are kept in the cache directory.",
    )
    spark_jars: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="Directory of the Spark connector's jars, in place of the pinned ones."
    )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> JarSettings:
        """Return the settings in `environ`, with the cache directory that follows from them.

        Raises:
            SettingError: a variable has a wrong value; the user corrects it.
        """
        given = load(cls, environ=environ)
        directory = given.cache_dir.expanduser() if given.cache_dir else _xdg_cache(environ)
        return replace(given, cache_dir=directory)

    def cache(self) -> Path:
        """Return the cache directory, absolute.

        Raises:
            JarsError: this user has no home directory to keep one in; the user names one.
        """
        if self.cache_dir is None:
            raise JarsError(
                "this user has no home directory to keep jars in: set"
                f" {CACHE_VARIABLE} to a directory that can be written."
            )
        return self.cache_dir.absolute()


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


def read_lock(path: Path) -> tuple[LockedJar, ...]:
    """Return the jars of a lock file, in class path order."""
    rows = (line.split() for line in path.read_text("utf-8").splitlines())
    return tuple(LockedJar(row[0], int(row[1]), row[2]) for row in rows if row and row[0] != "#")


def locked_jars(lock: Path, settings: JarSettings) -> tuple[Path, ...]:
    """Return the jars of a lock file in class path order, fetched at most once.

    Safe to call from several processes at once: one fetches, the others wait.

    Raises:
        JarsError: they cannot be fetched or kept; the user must act.
    """
    jars = read_lock(lock)
    with cache_of_jars(settings) as directory:
        if not all(each.is_in(directory) for each in jars):
            with sole_fetcher(directory):
                _fetch([each for each in jars if not each.is_in(directory)], directory, settings)
        return tuple(directory / each.path for each in jars)


@contextmanager
def cache_of_jars(settings: JarSettings) -> Iterator[Path]:
    """Yield the directory with jars as a Maven repository has them.

    Raises JarsError: it cannot be used; the user names another one.
    """
    cache = settings.cache()
    try:
        (cache / "jars").mkdir(parents=True, exist_ok=True)
        yield cache / "jars"
    except OSError as error:
        raise JarsError(
            f"cannot use the cache directory {cache}: {error}. Set {CACHE_VARIABLE} to one that"
            " can be written."
        ) from error


def repository_url(settings: JarSettings) -> str:
    """Return HALFBRIDGE_MAVEN_REPOSITORY, else the central repository's address, as jgo has it.

    Raises JarsError: jgo is not installed; the user installs it, or sets the variable.
    """
    if given := settings.maven_repository:
        return given.rstrip("/")
    try:
        from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise JarsError(
            f"{needs('the address of the central Maven repository', 'jgo')}, or set"
            f" {REPOSITORY_VARIABLE} to that of another"
        ) from error
    return str(MAVEN_CENTRAL_URL)


@contextmanager
def sole_fetcher(directory: Path) -> Iterator[None]:
    """Let only this process fetch into a directory of jars.

    The system releases the lock when the process ends.

    Raises JarsError: another process takes too long; the user ends it.
    """
    path = directory / "fetch.lock"
    deadline = time.monotonic() + _LOCK_S_MAX
    with path.open("a", encoding="utf-8") as file:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise JarsError(
                    f"another process has held {path} for {_LOCK_S_MAX:.0f} s: end it, then try"
                    " again."
                )
            time.sleep(_LOCK_POLL_S)
        yield


def _xdg_cache(environ: Mapping[str, str]) -> Path | None:
    """Return `halfbridge` in the XDG cache directory; None: there is no home directory for one."""
    if xdg := environ.get(_XDG_CACHE_HOME):
        return Path(xdg) / "halfbridge"
    try:
        return Path.home() / ".cache" / "halfbridge"
    except RuntimeError:  # neither HOME nor an entry among the users of this machine
        return None


def _fetch(jars: list[LockedJar], directory: Path, settings: JarSettings) -> None:
    if not jars:
        return  # another process has fetched them
    sources = [*_local_repository(), repository_url(settings)]
    size_mb = sum(each.size_bytes for each in jars) / 1e6
    _log.info("fetching %d jars (%.0f MB) from %s", len(jars), size_mb, _shown(sources[-1]))
    deadline = time.monotonic() + _FETCH_S_MAX
    with ThreadPoolExecutor(_FETCHERS) as pool:
        fetching = [pool.submit(_fetch_one, each, directory, sources, deadline) for each in jars]
        try:
            for future in fetching:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _local_repository() -> Iterator[str]:
    """Yield the address of Maven's own repository, where Maven was used on this machine."""
    with suppress(RuntimeError):  # a user without a home directory
        local = Path("~/.m2/repository").expanduser()
        if local.is_dir():
            yield local.as_uri()


def _fetch_one(jar: LockedJar, directory: Path, sources: list[str], deadline: float) -> None:
    problems: dict[str, None] = {}  # in order, each once
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S * 2 ** (attempt - 1))
        for source in sources:
            if time.monotonic() > deadline:
                problems[f"not within {_FETCH_S_MAX:.0f} s"] = None
                break
            try:
                body = _body(jar, source)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problems[f"{_shown(source)}: {error}"] = None
                if isinstance(error, urllib.error.HTTPError):
                    error.close()  # it is the answer, and holds the connection
                continue
            _keep(body, directory / jar.path)
            return
    raise JarsError(
        f"cannot fetch {jar.coordinate}: {' | '.join(problems)}. Check the network;"
        f" {REPOSITORY_VARIABLE} names another Maven repository, https_proxy a proxy."
    )


def _body(jar: LockedJar, source: str) -> bytes:
    """Return the jar's bytes; ValueError for other bytes than the lock file names."""
    body = bytearray()
    with urllib.request.urlopen(_request(source, jar.path), timeout=_SOCKET_S_MAX) as answer:  # noqa: S310  (the user's address)
        while len(body) <= jar.size_bytes and (chunk := answer.read(_CHUNK_BYTES)):
            body += chunk
    if len(body) != jar.size_bytes or hashlib.sha256(body).hexdigest() != jar.sha256:
        raise ValueError("not the file that the lock file names (size or SHA-256 differs)")
    return bytes(body)


def _request(source: str, path: str) -> urllib.request.Request:
    """Return the request for a file; a redirect to another host does not get the password."""
    request = urllib.request.Request(f"{_shown(source)}/{path}")  # noqa: S310  (the user's address)
    parts = urlsplit(source)
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        basic = b64encode(user.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {basic}")
    return request


def _shown(source: str) -> str:
    """Return an address without the user and the password in it."""
    parts = urlsplit(source)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _keep(body: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(body)
    fresh.replace(path)  # atomic: a reader sees all of it or none
