"""How a process of halfbridge handles signals, and how it ends.

A Python signal handler runs in the main thread: it waits until the Kafka client returns there, and
can deadlock on a lock that the main thread holds. So C code writes to the interpreter's wake-up
descriptor at once, and a thread of `on_signals` reads it.

The normal end of the interpreter can hang as well, on a broken Kafka client; `end_process` avoids
it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Switches the log to debug, and back.
LEVEL_SIGNAL = signal.SIGUSR1
_BYTES_MAX = 64  # signals that came together; more come with the next call


@contextmanager
def on_signals(
    react: Callable[[int], None], *, signals: Sequence[signal.Signals] = STOP_SIGNALS
) -> Iterator[None]:
    """Call `react(number)` in a thread for `signals` in the block, entered in the main thread."""
    receiver, sender = socket.socketpair()
    sender.settimeout(0)  # what the interpreter demands of a wake-up descriptor
    thread = threading.Thread(
        target=_deliver, args=(receiver, react), name="halfbridge-signals", daemon=True
    )
    thread.start()
    wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    former = {number: signal.signal(number, _ignore) for number in signals}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        sender.close()
        thread.join()
        receiver.close()


def _deliver(receiver: socket.socket, react: Callable[[int], None]) -> None:
    while numbers := receiver.recv(_BYTES_MAX):
        for number in numbers:
            react(number)


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing; only a signal with a handler reaches the wake-up descriptor."""


def end_process(status: int) -> NoReturn:
    """End this process at once; buffered log lines and output are written first.

    The normal end of the interpreter destroys Kafka clients and waits for all threads, which a
    broken client may delay for ever (librdkafka #4674), when no Python code can stop it.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # The reader is gone, or the stream is closed; a stream closed before the start is None.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
