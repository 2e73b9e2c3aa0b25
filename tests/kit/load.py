"""What clients under load share: each is a process that signals control.

A client says READY once it is started. On SIGUSR1 it begins nothing new, lets everything end, and
says QUIET. It answers checks until SIGTERM.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

READY, QUIET = "ready", "quiet"
PRODUCER_GROUP = "shop"
REAL_TOPICS = ("orders", "payments")
TICK_S = 0.1  # a signal that comes just before a wait is seen behind it


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every client has."""
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--directory", required=True, type=Path)
    parser.add_argument("--name", required=True, help="no other process has or had it")
    parser.add_argument("--seed", required=True, type=int)
    return parser


def live(
    producer: AbstractContextManager[object], run: Callable[[], object], quiet: threading.Event
) -> None:
    """Run the load until `quiet`, which SIGUSR1 and SIGTERM set; return at SIGTERM."""
    end = threading.Event()

    def stop(number: int, _: object) -> None:
        quiet.set()
        if number == signal.SIGTERM:
            end.set()

    signal.signal(signal.SIGUSR1, stop)
    signal.signal(signal.SIGTERM, stop)
    with producer:
        _say(READY)
        run()
        _say(QUIET)
        while not end.wait(TICK_S):
            pass


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
