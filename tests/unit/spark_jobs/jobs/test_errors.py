"""What a user is told of an error that the JVM raised."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from halfbridge.spark_jobs.errors import cause_of

_SIMPLE = "no column\n of that name"
_SIMPLE_SHOWN = "ExtendedAnalysisException: no column of that name"
_FRAMES = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    k[1]\n    ~^^^\n'


@dataclass
class _Java:
    """As Py4J shows a Java exception."""

    name: str
    message: str | None = None
    cause: _Java | None = None

    def getCause(self) -> _Java | None:  # noqa: N802 (Java's)
        return self.cause

    def getMessage(self) -> str | None:  # noqa: N802 (Java's)
        return self.message

    def getSimpleMessage(self) -> str:  # noqa: N802 (Java's)
        return _SIMPLE

    def getClass(self) -> _Java:  # noqa: N802 (Java's)
        return self

    def getSimpleName(self) -> str:  # noqa: N802 (Java's)
        return self.name


class _RaisedError(Exception):
    """As Py4J raises it."""

    def __init__(self, java: _Java) -> None:
        super().__init__("an error occurred while calling o42.get")
        self.java_exception = java


@pytest.mark.parametrize(
    ("java", "shown"),
    [
        (
            _Java("SparkException", "job aborted", _Java("AuthException", "\n denied \n for x")),
            "AuthException: denied for x",
        ),
        (_Java("TimeoutException"), "TimeoutException"),
        (_Java("ExtendedAnalysisException", "no column\n'Filter\n+- Range"), _SIMPLE_SHOWN),
    ],
    ids=["the innermost, in one line", "one without a message", "one with a plan"],
)
def test_the_innermost_cause_is_shown_whole(java: _Java, shown: str) -> None:
    """Spark wraps Kafka's errors in several of its own; a query plan is no part of the cause."""
    assert cause_of(_RaisedError(java)) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("first\nsecond", "first second"),
        (f"{_FRAMES}KeyError: 'k'", "KeyError: 'k'"),
        (f"failed\n{_FRAMES}Old: x\n\nagain\n\n{_FRAMES}New: a\n  b\nc", "New: a b c"),
        ("Traceback (most recent call last):\n", ""),
        ("", "ValueError"),
    ],
    ids=["several lines", "a traceback", "a chain of tracebacks", "frames only", "no text"],
)
def test_the_text_of_an_error_of_python_is_shown_whole(text: str, shown: str) -> None:
    """Of a traceback all that follows the last frame; an error without a text has its name."""
    assert cause_of(ValueError(text)) == (shown or "ValueError")
