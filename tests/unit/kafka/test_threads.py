"""Side threads, and clients that may never close."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest

from halfbridge.kafka import threads
from halfbridge.kafka.sending import Acknowledgements
from halfbridge.kafka.threads import SideThread, Threads, locked


def test_calls_run_in_order_and_report_their_end() -> None:
    """Each future is done when its call has returned, with what it raised."""
    seen: list[int] = []
    thread = SideThread("test")

    def fail() -> None:
        raise ValueError("no luck")

    first, failed, last = (
        thread.submit(seen.append, 1),
        thread.submit(fail),
        thread.submit(seen.append, 2),
    )

    last.result(5)
    assert first.result(5) is None
    with pytest.raises(ValueError, match="no luck"):
        failed.result(5)
    assert seen == [1, 2]
    thread.leave()


def test_a_call_that_hangs_is_left_behind() -> None:
    """The thread ends by itself once the call returns; nothing that comes later runs in it."""
    release = threading.Event()
    ended = threading.Event()
    thread = SideThread("test-hung")

    def hang() -> None:
        release.wait()
        ended.set()

    future = thread.submit(hang)
    thread.leave()
    assert not future.done()
    (hung,) = (each for each in threading.enumerate() if each.name == "test-hung")
    assert hung.daemon, "it would hold up the end of the process"

    release.set()
    hung.join(5)
    assert ended.is_set()
    assert not hung.is_alive()


class _Client:
    """A client whose end is what a test says."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.close = end


def test_a_client_that_does_not_close_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker's loop would stand still with it, for good."""
    monkeypatch.setattr(threads, "CLOSE_S_MAX", 0.01)
    release = threading.Event()
    Threads.close_clients(_Client(release.wait))
    assert "continuing without them" in caplog.text
    release.set()


def test_too_many_clients_left_behind_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their threads and their memory are this process's; a supervisor starts another one."""
    monkeypatch.setattr(threads, "CLOSE_S_MAX", 0.01)
    monkeypatch.setattr(threads, "LEFT_MAX", 3)
    monkeypatch.setattr(threads, "_left", [])
    release = threading.Event()
    Threads.close_clients(*[_Client(release.wait)] * 3)
    with pytest.raises(RuntimeError, match="restart this process"):
        Threads.close_clients(_Client(release.wait))
    Threads.close_clients(_Client(release.is_set))  # this one is not to blame
    release.set()


def test_a_client_is_closed_where_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts none when it ends, and then is when many a producer is closed."""
    closed: list[object] = []

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    Threads.close_clients(_Client(lambda: closed.append(1)))
    assert closed == [1]


def test_a_client_that_cannot_close_is_let_go() -> None:
    """It is broken: what it says of it helps nobody."""
    called = threading.Event()

    def fail() -> None:
        called.set()
        raise RuntimeError("closed already")

    Threads.close_clients(_Client(fail))
    assert called.is_set()


# --- a waker held like a lock --------------------------------------------------------------


def test_nobody_else_has_it_meanwhile_and_it_is_given_back() -> None:
    """Also where the block is left by an exception."""
    waker = Threads.waker()
    free = []

    def fail() -> None:
        free.append(waker.acquire(blocking=False))
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"), locked(waker):
        fail()
    assert free == [False]
    assert waker.acquire(blocking=False)


# --- a producer in a process whose threads are greenlets: refused, in place of a frozen process

TIMEOUT_S = 120  # a frozen process would never end
PROGRAM = """
{patch}
from halfbridge import TransactionProducer
from halfbridge.kafka.errors import BridgeError
producer = TransactionProducer(
    bootstrap_servers="127.0.0.1:1", producer_group="g", checker=print, send_timeout_ms=1000
)
try:
    producer.start()
except BridgeError as error:
    print(type(error).__name__, error)
"""


def output_of(patch: str) -> str:
    """Return what a program prints that patches first, and then starts a producer."""
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(patch=patch)]
    return subprocess.run(
        program, capture_output=True, check=True, text=True, timeout=TIMEOUT_S
    ).stdout


def skip_without(package: str) -> None:
    """Skip a test whose package is not installed.

    It is not imported here: eventlet makes every later fork of the process warn.
    """
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.process
@pytest.mark.parametrize(
    ("package", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all()"),
        ("eventlet", "import eventlet; eventlet.monkey_patch()"),
    ],
)
def test_patched_threads_are_refused(package: str, patch: str) -> None:
    """By an error that names the package and the remedy."""
    skip_without(package)
    reported = output_of(patch)
    assert reported.startswith("ConfigError")
    assert package in reported
    assert "gthread" in reported
    assert "prefork" in reported


@pytest.mark.process
@pytest.mark.parametrize(
    ("package", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all(thread=False)"),
        ("eventlet", "import eventlet; eventlet.monkey_patch(thread=False)"),
        ("gevent", "import gevent.monkey"),
    ],
)
def test_native_threads_are_not_refused(package: str, patch: str) -> None:
    """The package may be there, and may patch other modules: the brokers are asked then."""
    skip_without(package)
    reported = output_of(patch)
    assert "greenlets" not in reported
    assert reported.startswith(("BridgeError", "TopicSetupError", "RetriableError"))


# --- offsets that a broker has reported, and those that the client has counted -----------------

SENDING_S = 20.0


@pytest.mark.parametrize(
    ("offsets", "proven"),
    [
        ([0, 1, 2], [True, True, True]),
        ([7, None, 0, 1, 12], [True, False, False, False, True]),
        ([None, 1], [False, True]),
        ([None, 0, None, 0, 1], [False] * 5),
        ([None, 5, 0], [False, True, False]),
    ],
    ids=["reported", "one batch", "a batch of one", "two batches", "another batch in between"],
)
def test_offsets_counted_from_none_prove_nothing(
    offsets: list[int | None], proven: list[bool]
) -> None:
    """Neither the first record of an inferred batch, which has none, nor the others."""
    reported = Acknowledgements(Threads.current)
    assert [reported.is_proven("half", 0, each) for each in offsets] == proven


def test_partitions_are_counted_each_for_itself() -> None:
    """What is inferred of one says nothing of another, nor of another topic."""
    reported = Acknowledgements(Threads.current)
    assert not reported.is_proven("half", 0, None)
    assert reported.is_proven("half", 1, 0)
    assert reported.is_proven("op", 0, 0)
    assert not reported.is_proven("half", 0, 0)


def test_batches_that_two_threads_serve_side_by_side_are_counted_apart() -> None:
    """Each thread that polls works off a batch of its own, and the callbacks take turns."""
    reported = Acknowledgements(Threads.current)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        proven = [
            thread.submit(reported.is_proven, "half", 0, offset).result(SENDING_S)
            for offset in (None, 0, 1)
            for thread in (one, other)
        ]
    assert proven == [False] * 6
