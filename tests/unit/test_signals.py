"""Signals reach a thread of the block, and a process ends although a thread of it hangs."""

import signal
import subprocess
import sys
import threading
from queue import Queue

import pytest

from halfbridge.signals import LEVEL_SIGNAL, STOP_SIGNALS, on_signals

WAIT_S_MAX = 30.0
SIGNALS = (*STOP_SIGNALS, LEVEL_SIGNAL)
# Ends while a thread waits for ever; what it printed is in a buffer until then.
HANGING = """
import threading
from halfbridge.signals import end_process

threading.Thread(target=threading.Event().wait).start()
print("said", end="")
end_process(3)
"""


def test_each_signal_is_given_to_the_thread_of_the_block() -> None:
    """The second signal of a kind comes too: whoever reacts decides what it means."""
    seen: Queue[tuple[int, str]] = Queue()
    with on_signals(lambda number: seen.put((number, threading.current_thread().name))):
        for sent in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(sent)
            assert seen.get(timeout=WAIT_S_MAX) == (sent, "halfbridge-signals")


def test_signals_that_come_while_the_thread_is_busy_are_kept() -> None:
    """They are given one after the other, and the block ends after the last."""
    seen = []
    is_free = threading.Event()

    def react(number: int) -> None:
        assert is_free.wait(WAIT_S_MAX)
        seen.append(number)

    with on_signals(react):
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        is_free.set()
    assert seen == [signal.SIGTERM] * 3


def test_only_the_signals_that_are_asked_for_are_taken() -> None:
    """A block that leaves SIGINT out leaves Ctrl-C to Python."""
    seen: Queue[int] = Queue()
    with on_signals(seen.put, signals=(LEVEL_SIGNAL,)):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.raise_signal(LEVEL_SIGNAL)
        assert seen.get(timeout=WAIT_S_MAX) == LEVEL_SIGNAL


def test_what_was_there_is_put_back() -> None:
    """Handlers, wake-up descriptor and threads are those of before, also after an error."""
    before = [signal.getsignal(number) for number in SIGNALS]
    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError), on_signals(lambda _number: None, signals=SIGNALS):
        assert not {*before} & {signal.getsignal(number) for number in SIGNALS}
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads


@pytest.mark.process
def test_a_process_ends_although_a_thread_hangs() -> None:
    """Its status is the one that was given, and its output is not lost."""
    ended = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, timeout=WAIT_S_MAX, check=False
    )
    assert (ended.returncode, ended.stdout) == (3, b"said")
