"""Unit tests start no process and open no socket, unless they are marked `process`.

The interpreter reports both to audit hooks (PEP 578). Kafka's client opens its sockets in C, which
no hook sees; unit tests give it no broker. Only the tests' own thread is watched: threads of other
tests' services run in the same process.
"""

import platform
import sys
import threading
from collections.abc import Generator
from typing import Any

import pytest

_REFUSED = frozenset(
    (
        *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"),
        *("socket.bind", "socket.connect", "subprocess.Popen"),
    )
)
_UNWATCHED = (
    "process",
    "feature",
    "more",
    "long",
    "soak",
)  # the others are those of `make test-unit`
_ADVICE = "mark the test `process`, or test without"
_TESTS = threading.get_ident()
_is_watched = False
_seen: list[str] = []  # an error that is raised in another thread, or caught, fails no test


def _watch(event: str, _arguments: tuple[Any, ...]) -> None:
    if _is_watched and event in _REFUSED and threading.get_ident() == _TESTS:
        _seen.append(event)
        raise RuntimeError(f"a unit test does {event}: {_ADVICE}")


sys.addaudithook(_watch)
# `platform.platform` starts uname once in a process, in whichever test comes first.
platform.platform()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Watch the test from its first fixture on."""
    global _is_watched  # noqa: PLW0603  (an audit hook cannot be removed)
    _is_watched = not any(map(item.get_closest_marker, _UNWATCHED))
    _seen.clear()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Fail a test during which something was refused.

    After the last test brokers and databases of other tests end, which use processes.
    """
    global _is_watched  # noqa: PLW0603  (as above)
    _is_watched = _is_watched and nextitem is not None
    try:
        return (yield)
    finally:
        _is_watched = False
        if _seen:
            pytest.fail(f"{', '.join(sorted({*_seen}))} in a unit test: {_ADVICE}", pytrace=False)
