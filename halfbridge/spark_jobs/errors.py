"""Errors of the jobs, and how any error of theirs becomes one line.

JobError               (RuntimeError) the user of the job acts, as the text says
└─ TopicsChangedError  (`tables.checkpoints`) the user begins again, as the text says
"""

from __future__ import annotations

import re

_CAUSES_MAX = 10  # Spark nests three or four; a chain that closes on itself must end
_TRACEBACK = "Traceback (most recent call last)"
# All up to the indented lines of the last frame: the next line begins with the error's type.
_FRAMES = re.compile(
    r"\A.*^[ \t]+File \"[^\n]*\n(?:[ \t]+[^\n]*\n)*|\A.*" + re.escape(_TRACEBACK) + r":?",
    re.DOTALL | re.MULTILINE,
)
_WITH_PLAN = "ExtendedAnalysisException"


class JobError(RuntimeError):
    """A job cannot do its work; its one line says what the user can do."""


def cause_of(error: BaseException) -> str:
    """Return the innermost cause of an error, PySpark's or any other; its whole text in one line.

    Spark wraps Kafka's errors in several of its own. The text is not cut: Spark names the
    partitions, the offsets and the remedy in its later lines.
    """
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return _one_line(str(error)) or type(error).__name__
    for _ in range(_CAUSES_MAX):
        if (deeper := java.getCause()) is None:
            break
        java = deeper
    name: str = java.getClass().getSimpleName()
    # The message of this one ends with a query plan, which may have hundreds of lines.
    text = java.getSimpleMessage() if name == _WITH_PLAN else java.getMessage()
    return ": ".join(filter(None, (name, _one_line(text or ""))))


def _one_line(text: str) -> str:
    if _TRACEBACK in text:
        text = _FRAMES.sub("", text)
    return " ".join(text.split())
