"""Stopping one thread of another process, while the others go on: SIGSTOP cannot do that."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# linux/ptrace.h
_DETACH, _SEIZE, _INTERRUPT = 17, 0x4206, 0x4207
_WALL = 0x40000000  # wait for a thread that is no child of ours (linux/wait.h)


def _ptrace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, thread, None, None) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def main_thread_stopped(pid: int) -> Iterator[None]:
    """Hold a process's main thread for the time of the block; must end in the thread it began in.

    Raises:
        PermissionError: this machine does not let us.
    """
    _ptrace(_SEIZE, pid)
    try:
        _ptrace(_INTERRUPT, pid)
        os.waitpid(pid, _WALL)
        yield
    finally:
        _ptrace(_DETACH, pid)
