"""Signals as calls in a thread of their own.

A handler that runs in the main thread waits for whatever the Kafka client does there, and can
deadlock on a lock that the main thread holds. The interpreter's wake-up descriptor has neither
fault: it is written to at once, by C code, and read here by a thread.
"""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BYTES_MAX = 64


@contextmanager
def on_signals(
    react: Callable[[int], None], *, signals: Sequence[signal.Signals] = STOP_SIGNALS
) -> Iterator[None]:
    """Call `react(number)` in a thread at each of `signals` while the block runs.

    Enter it in the main thread. The former handlers are put back at the end.
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
        # `react` itself may be what ends the block; it must not wait for itself.
        if thread is not threading.current_thread():
            thread.join()
        receiver.close()


def _deliver(receiver: socket.socket, react: Callable[[int], None]) -> None:
    while numbers := receiver.recv(_BYTES_MAX):
        for number in numbers:
            react(number)


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: only a signal with a handler reaches the wake-up descriptor."""
