"""Fixtures for tests on a real Kafka; pytest loads them wherever halfbridge is installed.

Do not also name it in `pytest_plugins`: pytest refuses a plugin under two names. Everything heavy
is imported when a fixture is first used, never when pytest starts.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

from halfbridge import environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from halfbridge.testkit.memory import MemoryStack
    from halfbridge.testkit.source import KafkaSource
    from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics

_KINDS = ("memory", "embedded", "docker")
_OPTION = "--halfbridge-stack"
_STACK = "halfbridge_stack"
_SOURCE: pytest.StashKey[KafkaSource] = pytest.StashKey()


def leave_out(reason: str) -> NoReturn:
    """Skip the test for a missing requirement; with CI=true fail it, as CI must have them all."""
    if environment.variables().get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def kafka_bootstrap_servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a real Kafka for the whole session.

    HALFBRIDGE_TEST_BOOTSTRAP when given, else Docker when HALFBRIDGE_TEST_DOCKER=1 and a daemon
    answers, else the embedded broker. When none can be had, tests are skipped; with CI=true they
    fail.
    """
    from halfbridge.testkit.source import open_kafka  # noqa: PLC0415  (pytest loads the plugin always)

    with _opened(open_kafka(environment.variables())) as source:
        request.config.stash[_SOURCE] = source
        yield source.bootstrap_servers


@pytest.fixture
def topic_prefix() -> str:
    """Return a prefix that no other test has, so that tests share a cluster and no topic."""
    return f"t{secrets.token_hex(4)}-"


@pytest.fixture
def halfbridge_memory() -> Iterator[MemoryStack]:
    """Yield an installation in this process, of this test alone: no Java, no Docker, no waiting.

    See MemoryStack. Without the extra `memory` the test is skipped; with CI=true it fails.
    """
    with _memory() as stack:
        yield stack


@pytest.fixture(scope="session")
def halfbridge_stack(request: pytest.FixtureRequest) -> Iterator[HalfbridgeStack | MemoryStack]:
    """Yield a daemon on a Kafka, with internal topics of its own, for the whole session.

    The Kafka is that of `kafka_bootstrap_servers`, and transactions are asked about after one
    second. The option --halfbridge-stack, or a parameter of the fixture (`indirect=True`), names
    others: "memory" (see MemoryStack), "embedded", "docker". See HalfbridgeStack for what both
    stacks have in common.
    """
    kind = getattr(request, "param", "")
    if kind == "memory":
        with _memory() as in_memory:
            yield in_memory
        return
    from halfbridge.testkit.source import open_kafka_of  # noqa: PLC0415  (pytest loads the plugin always)
    from halfbridge.testkit.stack import HalfbridgeStack  # noqa: PLC0415  (pytest loads the plugin always)

    with ExitStack() as opened:
        if kind:
            source = opened.enter_context(_opened(open_kafka_of(kind, environment.variables())))
            servers = source.bootstrap_servers
        else:
            servers = request.getfixturevalue("kafka_bootstrap_servers")
        yield opened.enter_context(HalfbridgeStack(servers))


@pytest.fixture
def halfbridge_topics(
    halfbridge_stack: HalfbridgeStack | MemoryStack, topic_prefix: str
) -> OwnTopics:
    """Return a maker of topics that no other test has: `halfbridge_topics.create("orders")`."""
    from halfbridge.testkit.stack import OwnTopics  # noqa: PLC0415  (pytest loads the plugin always)

    return OwnTopics(halfbridge_stack, topic_prefix)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses the stacks that tests run on."""
    parser.getgroup("halfbridge").addoption(
        _OPTION,
        default="",
        metavar="KINDS",
        help=f"run each test of halfbridge_stack on these, out of {','.join(_KINDS)}",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of `halfbridge_stack` once for each kind that the option names."""
    kinds = [each for each in metafunc.config.getoption(_OPTION).split(",") if each]
    if unknown := sorted({*kinds} - {*_KINDS}):
        raise pytest.UsageError(f"{_OPTION}: {', '.join(unknown)}: give {', '.join(_KINDS)}")
    if kinds and _STACK in metafunc.fixturenames and not _has_kinds(metafunc):
        metafunc.parametrize(_STACK, kinds, indirect=True, scope="session")


def _has_kinds(metafunc: pytest.Metafunc) -> bool:
    """Return whether a test names its stacks itself."""
    return any(
        _STACK in str(each.args[:1]) for each in metafunc.definition.iter_markers("parametrize")
    )


def _memory() -> MemoryStack:
    try:
        from halfbridge.testkit.memory import MemoryStack  # noqa: PLC0415  # an extra
    except ImportError as error:
        leave_out(str(error))
    return MemoryStack()


@contextmanager
def _opened(opened: AbstractContextManager[KafkaSource]) -> Iterator[KafkaSource]:
    """Open a Kafka; where none is available, leave the test out."""
    from halfbridge.testkit.source import KafkaMissingError  # noqa: PLC0415  (pytest loads the plugin always)

    try:
        source = opened.__enter__()
    except KafkaMissingError as error:
        leave_out(str(error))
    try:
        yield source
    finally:
        opened.__exit__(None, None, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report which Kafka the tests used: a green run means little without it."""
    source = terminalreporter.config.stash.get(_SOURCE, None)
    if source is not None:
        what = f"{source.kind} {source.version}".strip()
        terminalreporter.write_line(f"kafka: {what}, {source.bootstrap_servers}")
