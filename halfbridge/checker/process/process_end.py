"""The end of a process that had Kafka clients."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


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
