"""Errors of the jobs, and how any error of theirs becomes one line."""

from __future__ import annotations

from typing import Any

_CAUSES_MAX = 10  # Spark nests three or four; a chain that closes on itself must end
_TRACEBACK = "Traceback (most recent call last)"


class JobError(RuntimeError):
    """A job cannot do what it was told; its one line says what the user can do."""


def cause_of(error: BaseException) -> str:
    """Return the innermost cause in one line: Spark wraps Kafka's errors in several of its own.

    Args:
        error: What PySpark raised (PySparkException or Py4JError), or anything else.
    """
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return _telling_line(str(error)) or type(error).__name__
    for _ in range(_CAUSES_MAX):
        if (deeper := java.getCause()) is None:
            break
        java = deeper
    told = (java.getClass().getSimpleName(), _telling_line(java.getMessage() or ""))
    return ": ".join(filter(None, told))


def _telling_line(text: str) -> str:
    """Return the line that says what happened: a Python traceback has it at its end."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if any(_TRACEBACK in line for line in lines) else lines[0]
