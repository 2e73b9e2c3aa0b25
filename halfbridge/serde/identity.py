"""Transaction ids: UUIDv7 in hex, so that any tool finds a transaction by its time."""

from __future__ import annotations

import os
from threading import Lock
from time import time_ns

from halfbridge.serde.units import NS_PER_MS

# A message that a relay of changes wrote belongs to no message transaction. Its id begins so.
CHANGE_ID_PREFIX = "change-"
_RANDOM_BYTES = 8  # of which 62 bits are used (RFC 9562)
# One system call fetches randomness for this many ids: a page of 4 KiB.
_POOL_IDS = 512
_RANDOM_MASK = (1 << 62) - 1  # rand_b: 62 bits (RFC 9562, 5.7)
_VERSION = 7 << 76  # version 7, in front of rand_a's 12 bits
_VARIANT = 2 << 62  # variant 10
_COUNTER_MAX = 0xFFF  # rand_a: 12 bits, a counter within one millisecond


class TransactionIds:
    """Makes UUIDv7 ids (RFC 9562, method 1: a 12-bit counter), ascending within a process.

    Thread-safe. After a fork, child and parent make different ids. The 62 random bits are the
    operating system's, because everybody who can guess an id may decide its transaction.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool = b""
        self._at = 0
        self._last_ms = 0
        self._counter = 0
        os.register_at_fork(after_in_child=self._forget)

    def next(self) -> str:
        """Return a new id of 32 hexadecimal digits."""
        with self._lock:
            now_ms = time_ns() // NS_PER_MS
            if now_ms > self._last_ms:
                self._last_ms = now_ms
                self._counter = 0
            else:  # the same millisecond, or a clock that was set back
                self._counter += 1
                if self._counter > _COUNTER_MAX:
                    self._last_ms += 1
                    self._counter = 0
            at = self._at
            if at >= len(self._pool):
                self._pool = os.urandom(_RANDOM_BYTES * _POOL_IDS)
                at = 0
            self._at = at + _RANDOM_BYTES
            low = int.from_bytes(self._pool[at : at + _RANDOM_BYTES], "big") & _RANDOM_MASK
            number = self._last_ms << 80 | _VERSION | self._counter << 64 | _VARIANT | low
        return f"{number:032x}"

    def _forget(self) -> None:
        # Also in a child process, where the lock may have been held by a thread that is gone.
        self._lock = Lock()
        self._pool = b""
        self._at = 0
        self._last_ms = 0
        self._counter = 0


TRANSACTION_IDS = TransactionIds()
