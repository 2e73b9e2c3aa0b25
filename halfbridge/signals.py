"""How a process of halfbridge handles signals, and how it ends.

A Python signal handler runs in the main thread. It waits until the Kafka client returns there, and
it can deadlock on a lock that the main thread holds. The interpreter's wake-up descriptor avoids
both: C code writes to it at once, and a thread of `on_signals` reads it.

The normal end of the interpreter can hang as well, on a broken Kafka client. `end_process` ends the
process without it.
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
_BYTES_MAX = 64


@contextmanager
def on_signals(
    react: Callable[[int], None], *, signals: Sequence[signal.Signals] = STOP_SIGNALS
) -> Iterator[None]:
    """Call `react(number)` in a thread for each of `signals` while the block runs.

    Enter the block in the main thread. The former handlers are restored at the end.
    """
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
        # `react` itself may end the block, and must not wait for itself.
        if thread is not threading.current_thread():
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

    This avoids the normal end of the interpreter, which destroys Kafka clients and waits for all
    threads. A broken client may delay the normal end for ever (librdkafka #4674), at a time when no
    Python code can stop it.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # The reader is gone, or the stream is closed; a stream closed before the start is None.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
