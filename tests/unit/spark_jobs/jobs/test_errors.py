"""What a user is told of an error that the JVM raised."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from halfbridge.spark_jobs.jobs.errors import cause_of


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
    ("java", "told"),
    [
        (
            _Java("SparkException", "job aborted", _Java("AuthException", "\n denied \n at x")),
            "AuthException: denied",
        ),
        (_Java("TimeoutException"), "TimeoutException"),
    ],
    ids=["the innermost, in one line", "one without a message"],
)
def test_the_innermost_cause_is_told(java: _Java, told: str) -> None:
    """Spark wraps Kafka's errors in several of its own."""
    assert cause_of(_RaisedError(java)) == told


def test_an_error_of_python_is_told_by_its_text() -> None:
    """Of a traceback the last line says what happened; an error without a text has its name."""
    assert cause_of(ValueError("first\nsecond")) == "first"
    assert (
        cause_of(ValueError("Traceback (most recent call last):\n  x\nKeyError: 'k'"))
        == "KeyError: 'k'"
    )
    assert cause_of(ValueError()) == "ValueError"
