"""Resolves Maven coordinates to jars with the stand-alone Ivy that the pyspark wheel carries.

Results are kept in the cache directory: a second call costs no JVM. A result counts only while
every jar it names is there with the size it had, so a half-filled cache is resolved again.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import re
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from halfbridge.serde.settings import load
from halfbridge.spark_jobs.session.jar_settings import (
    CACHE_VARIABLE,
    SETTINGS_VARIABLE,
    JarSettings,
)
from halfbridge.spark_jobs.session.jvm import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RESOLVE_S_MAX = 900.0  # 45 jars, 110 MB take 40 s on a fast line
LOCK_S_MAX = RESOLVE_S_MAX + 60.0  # another process may be resolving for all of its time
_LOCK_POLL_S = 0.1  # little beside the seconds that a download takes
_CAUSES_MAX = 3  # one line of text; Ivy's later lines repeat the first
_COORDINATE = re.compile(r"[^\s:]+:[^\s:]+:[^\s:]+")
_CAUSE = re.compile(r"not found|unresolved|server error|unknown ?host|refused|timed out|exception")
_log = logging.getLogger(__name__)


class JarsError(RuntimeError):
    """The jars cannot be had; the user must act: network, disk or Ivy settings."""


def default_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return HALFBRIDGE_CACHE_DIR, else `halfbridge` in the XDG cache directory.

    Raises:
        JarsError: the user has no home directory; the user sets HALFBRIDGE_CACHE_DIR.
    """
    env = os.environ if environ is None else environ
    if given := load(JarSettings, environ=env).cache_dir:
        return given.expanduser()
    if xdg := env.get("XDG_CACHE_HOME"):
        return Path(xdg) / "halfbridge"
    try:
        return Path.home() / ".cache" / "halfbridge"
    except RuntimeError as error:  # neither HOME nor an entry among the users of this machine
        raise JarsError(
            f"this user has no home directory to keep jars in: set {CACHE_VARIABLE} to a directory"
            " that can be written."
        ) from error


def resolve(
    coordinates: Sequence[str], cache_dir: Path | None = None, *, transitive: bool
) -> tuple[Path, ...]:
    """Return the jars of `coordinates` in class path order, fetched at most once.

    Safe to call from several processes at once: one resolves, the others wait for its result.
    HALFBRIDGE_IVY_SETTINGS names an Ivy settings file (a mirror, say); without it Ivy's own apply.

    Args:
        coordinates: `group:artifact:version`, at least one.
        cache_dir: Where jars are kept; `default_cache_dir()` when not given.
        transitive: Whether the runtime dependencies are wanted too.

    Raises:
        ValueError: a coordinate has another form; the caller's mistake.
        JarsError: one line with the cause and what to do; the user must act.
        JavaNotFoundError: the jars are not cached and no Java can fetch them; the user must act.
    """
    if not coordinates:
        raise ValueError("no coordinates given")
    for coordinate in coordinates:
        if not _COORDINATE.fullmatch(coordinate):
            raise ValueError(f"{coordinate!r} is not group:artifact:version")
    cache = (cache_dir or default_cache_dir()).absolute()
    settings = load(JarSettings, environ=os.environ).ivy_settings
    record = cache / "resolved" / f"{_key(coordinates, settings, transitive=transitive)}.json"
    if jars := _remembered(record, cache):
        return jars
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        with locked(cache / "resolve.lock") as lock:
            if jars := _remembered(record, cache):
                return jars
            _discard_damaged(record, cache)
            _log.info("fetching %s into %s", ", ".join(coordinates), cache)
            jars = _run_ivy(coordinates, cache, settings, transitive=transitive, lock=lock)
            _remember(record, cache, jars)
            return jars
    except OSError as error:
        raise JarsError(
            f"cannot use the cache directory {cache}: {error}. Set {CACHE_VARIABLE} to one that"
            " can be written."
        ) from error


def _key(coordinates: Sequence[str], settings: str | None, *, transitive: bool) -> str:
    what = json.dumps([list(coordinates), transitive, settings])
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def _entries(record: Path, cache: Path) -> list[tuple[Path, int]]:
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
        return [(cache / name, int(size_bytes)) for name, size_bytes in known["jars"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # absent or damaged: both mean resolve


def _intact(jar: Path, size_bytes: int) -> bool:
    return jar.is_file() and jar.stat().st_size == size_bytes


def _remembered(record: Path, cache: Path) -> tuple[Path, ...]:
    entries = _entries(record, cache)
    return tuple(jar for jar, _ in entries) if all(_intact(*entry) for entry in entries) else ()


def _discard_damaged(record: Path, cache: Path) -> None:
    """Remove jars of another size than recorded: Ivy trusts whatever file is there."""
    for jar, size_bytes in _entries(record, cache):
        if not _intact(jar, size_bytes):
            jar.unlink(missing_ok=True)


def _remember(record: Path, cache: Path, jars: Sequence[Path]) -> None:
    entries = [[os.path.relpath(jar, cache), jar.stat().st_size] for jar in jars]
    fresh = record.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({"jars": entries}, indent=1), encoding="utf-8")
    fresh.replace(record)  # atomic: a reader sees all of it or none


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold an exclusive lock; the system releases it when the last process that has it ends.

    Raises:
        JarsError: another process held the lock for LOCK_S_MAX; the user ends that process.
    """
    deadline = time.monotonic() + LOCK_S_MAX
    with path.open("a", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise JarsError(
                        f"another process has held {path} for {LOCK_S_MAX:.0f} s: end it, then"
                        " try again."
                    ) from None
                time.sleep(_LOCK_POLL_S)
        yield file.fileno()


def _run_ivy(
    coordinates: Sequence[str], cache: Path, settings: str | None, *, transitive: bool, lock: int
) -> tuple[Path, ...]:
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        module = Path(scratch, "ivy.xml")
        module.write_text(_module_xml(coordinates, transitive=transitive), encoding="utf-8")
        class_path = Path(scratch, "classpath")
        command = [
            str(find_java().executable),
            *("-jar", str(_ivy_jar()), "-confs", "default", "-types", "jar", "bundle"),
            *("-ivy", str(module), "-cachepath", str(class_path), "-cache", str(cache / "ivy")),
        ]
        if settings:
            command += ["-settings", settings]
        try:
            # The child keeps the lock: should this process be killed, nobody meets a running Ivy.
            done = subprocess.run(  # noqa: S603  # our own command line, no shell
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=RESOLVE_S_MAX,
                pass_fds=(lock,),
            )
        except subprocess.TimeoutExpired:
            raise _failure(
                coordinates, cache, f"Ivy did not end within {RESOLVE_S_MAX:.0f} s"
            ) from None
        found = class_path.read_text(encoding="utf-8").strip() if class_path.is_file() else ""
        if done.returncode != 0 or not found:
            raise _failure(coordinates, cache, _cause(done.stdout + done.stderr))
    return tuple(Path(jar) for jar in found.split(os.pathsep))


def _module_xml(coordinates: Sequence[str], *, transitive: bool) -> str:
    rows = []
    for coordinate in coordinates:
        group, artifact, version = map(quoteattr, coordinate.split(":"))
        rows.append(
            f"<dependency org={group} name={artifact} rev={version}"
            f' conf="default->default" transitive="{str(transitive).lower()}"/>'
        )
    return (
        '<ivy-module version="2.0"><info organisation="halfbridge" module="resolve"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(rows)}</dependencies></ivy-module>"
    )


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
        if jars:
            return jars[-1]
    raise JarsError(
        "pyspark's wheel, which carries the Ivy that resolves jars, is not installed:"
        " pip install 'halfbridge[spark]'."
    )


def _cause(output: str) -> str:
    """Return the few lines of Ivy's output that say why, without its frames and repetitions."""
    lines = [line.strip().lstrip(":!").strip() for line in output.splitlines()]
    telling = dict.fromkeys(
        line for line in lines if _CAUSE.search(line.lower()) and "UNRESOLVED" not in line
    )
    return " | ".join(list(telling)[:_CAUSES_MAX]) or (lines[-1] if lines else "no output")


def _failure(coordinates: Sequence[str], cache: Path, cause: str) -> JarsError:
    return JarsError(
        f"cannot fetch {', '.join(coordinates)}: {cause}. Check the coordinates and the network;"
        f" {SETTINGS_VARIABLE} names an Ivy settings file with a mirror, JAVA_TOOL_OPTIONS sets a"
        f" proxy; remove {cache} if it was damaged."
    )
