"""The end of a process that had Kafka clients."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """End this process at once; whatever was logged or printed is written first.

    Not by the interpreter's own end, which destroys Kafka clients and waits for all threads: one
    client that is not well holds up that end for ever (librdkafka #4674), and there is no Python
    left that could cut it off.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more, or it was closed
            stream.flush()
    os._exit(status)
