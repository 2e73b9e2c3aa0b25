"""Fixtures for tests on a real Kafka; pytest loads them wherever halfbridge is installed.

Do not also name it in `pytest_plugins`: pytest refuses a plugin under two names. Everything heavy
is imported when a fixture is first used, never when pytest starts.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.testkit.source import KafkaSource
    from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics

_SOURCE: pytest.StashKey[KafkaSource] = pytest.StashKey()


def leave_out(reason: str) -> NoReturn:
    """Skip the test for what is missing here; with CI=true fail it, for there all must be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def kafka_bootstrap_servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a real Kafka for the whole session.

    HALFBRIDGE_TEST_BOOTSTRAP when given, else Docker when HALFBRIDGE_TEST_DOCKER=1 and a daemon
    answers, else the embedded broker. When none can be had, tests are skipped; with CI=true they
    fail.
    """
    from halfbridge.testkit.source import KafkaMissingError, open_kafka  # noqa: PLC0415

    opened = open_kafka(os.environ)
    try:
        source = opened.__enter__()
    except KafkaMissingError as error:
        leave_out(str(error))
    request.config.stash[_SOURCE] = source
    try:
        yield source.bootstrap_servers
    finally:
        opened.__exit__(None, None, None)


@pytest.fixture
def topic_prefix() -> str:
    """Return a prefix that no other test has, so that tests share a cluster and no topic."""
    return f"t{secrets.token_hex(4)}-"


@pytest.fixture(scope="session")
def halfbridge_stack(kafka_bootstrap_servers: str) -> Iterator[HalfbridgeStack]:
    """Yield a daemon on that Kafka, with internal topics of its own, for the whole session.

    Transactions are asked about after one second. See halfbridge.testkit.stack.HalfbridgeStack.
    """
    from halfbridge.testkit.stack import HalfbridgeStack  # noqa: PLC0415

    with HalfbridgeStack(kafka_bootstrap_servers) as stack:
        yield stack


@pytest.fixture
def halfbridge_topics(halfbridge_stack: HalfbridgeStack, topic_prefix: str) -> OwnTopics:
    """Return a maker of topics that no other test has: `halfbridge_topics.create("orders")`."""
    from halfbridge.testkit.stack import OwnTopics  # noqa: PLC0415

    return OwnTopics(halfbridge_stack, topic_prefix)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which Kafka the tests met: a green run means little without it."""
    source = terminalreporter.config.stash.get(_SOURCE, None)
    if source is not None:
        what = f"{source.kind} {source.version}".strip()
        terminalreporter.write_line(f"kafka: {what}, {source.bootstrap_servers}")
