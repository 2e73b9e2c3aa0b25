"""Brokers that a test has for itself, to kill, to spoil, or to set up in its own way."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from halfbridge.java.jvm import JavaNotFoundError
from halfbridge.java.locked_jars import JarsError
from halfbridge.testkit.broker import EmbeddedBroker, EmbeddedCluster
from halfbridge.testkit.pytest_plugin import leave_out

# Refuses what is not granted.
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

Made = TypeVar("Made", bound=EmbeddedBroker | EmbeddedCluster)


@contextmanager
def started(made: Made, missing: str) -> Iterator[Made]:
    """Yield it running; where it cannot be had, leave the test out, for `missing` and the cause."""
    try:
        made.start()
    except (JarsError, JavaNotFoundError) as error:
        leave_out(f"{missing}: {error}")
    try:
        yield made
    finally:
        made.stop()
