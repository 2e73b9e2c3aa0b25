"""Runs a command in a child process, because a damaged record may abort the one that reads it.

The guard waits, and passes signals on. After an abort it has the same records read once more, in
another child, and says in one line which record is damaged.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from halfbridge.kafka import last_read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.kafka.first_reads import LethalRecord

# Commands that read logs. The daemon has a supervisor; relays and the web server run for long, and
# their service manager restarts them.
_READING = frozenset(("audit-log", "dead", "doctor", "groups", "topics", "transactions", "tx"))
# Commands that only read, and leave out a damaged partition when they run again.
_LEAVING_OUT = (("tx", "list"), ("groups",))
# Shows findings in spite of a damaged record, so a wrong checksum must not end it.
_NOT_VERIFYING = "doctor"
# Damaged partitions that are left out. A cluster with more has lost a disk.
_DAMAGED_MAX = 10
_EXIT_ERROR = 1  # `cli.EXIT_ERROR`, without what that module imports
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BY_A_PROCESS = 0  # SI_USER; a terminal's signals reach the child too


def guard(words: Sequence[str]) -> None:
    """Return at once, in a child if the command reads logs; the guard itself never returns."""
    plain = tuple(word for word in words if not word.startswith("-"))
    if not plain or plain[0] not in _READING or not hasattr(signal, "sigwaitinfo"):
        return
    leaves_out = any(plain[: len(each)] == each for each in _LEAVING_OUT)
    while True:
        last_read.share(verifies=plain[0] != _NOT_VERIFYING)
        status = _forked()
        if status is None:
            return
        if not os.WIFSIGNALED(status):
            os._exit(os.WEXITSTATUS(status))
        number = os.WTERMSIG(status)
        found = _found(number)
        if found is None or not leaves_out:
            _end(number, found)
        place = found.topic, found.partition
        if place in last_read.DAMAGED or len(last_read.DAMAGED) >= _DAMAGED_MAX:
            _end(number, found)
        last_read.DAMAGED[place] = found.offset, found.signal


def _end(number: int, found: LethalRecord | None) -> NoReturn:
    """Report what ended the child, and exit; as the child did, if no record can be the cause."""
    from halfbridge.checker.errors import DamagedRecordError
    from halfbridge.kafka.first_reads import LETHAL

    if number not in LETHAL:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    text = (
        f"the process was ended by {signal.Signals(number).name}, and no damaged record was found:"
        " report the lines above"
    )
    if found is not None:
        text = str(DamagedRecordError((found.topic, found.partition), found.offset, found.signal))
    with suppress(OSError, ValueError):
        sys.stderr.write(f"halfbridge: {text}\n")
        sys.stderr.flush()
    os._exit(_EXIT_ERROR)


def _forked() -> int | None:
    """Return None in a new child, and the child's wait status in the guard."""
    awaited = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        return None
    try:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            got = signal.sigwaitinfo(awaited)
            if got.si_signo != signal.SIGCHLD and got.si_code == _BY_A_PROCESS:
                os.kill(child, got.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _found(number: int) -> LethalRecord | None:
    from halfbridge.kafka.first_reads import LETHAL, find_damage

    reading = last_read.last()
    if number not in LETHAL or reading is None:
        return None
    starts = {(topic, partition): at for topic, partition, at in reading.starts}
    return find_damage(reading.properties, starts)
