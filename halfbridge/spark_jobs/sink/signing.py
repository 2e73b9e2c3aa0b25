"""Signs what the sink writes, with the key file of the process that writes.

The option `key.file` is a path. So the path travels in plans and to executors, and keys do not:
each process reads its own file, once for each task attempt and each call that decides. A key that
is added to the file is used from the next attempt on, without a restart of the query.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING

from halfbridge.kafka.signatures import client_signer
from halfbridge.spark_jobs.sink.errors import SinkOptionError

if TYPE_CHECKING:
    from halfbridge.kafka.signatures import ClientSigner
    from halfbridge.spark_jobs.sink.options import SinkOptions


def read_signer(options: SinkOptions, group: str, now_ms: int) -> ClientSigner | None:
    """Return the signer of a producer group; None without the option key.file.

    Args:
        options: The sink's options.
        group: The producer group of the half messages.
        now_ms: The time, ms since 1970.

    Raises:
        SinkOptionError: the file cannot be used on this host, or has no key by which a client may
            sign for the group now; whoever installs the file corrects it.
    """
    path = options.key_file
    wrong = partial(_wrong, path)
    return client_signer(path, group, options.names, now_ms=now_ms, wrong=wrong)


def _wrong(path: str, why: str) -> SinkOptionError:
    return SinkOptionError(
        f"option key.file is {path!r}, which cannot be used on host {socket.gethostname()}: {why}."
        " The driver and every executor need the file at this path, with the group's signing key"
    )
