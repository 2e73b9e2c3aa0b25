"""Findings about this machine and this Python. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfbridge.checker.admin.doctor.codes import Finding, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.checker.admin.doctor.facts import Host
    from halfbridge.checker.config import CheckerConfig

# What a worker takes beside its two budgets (docs/operations.md).
PROCESS_BYTES = 300 * 1024 * 1024
# A worker has half a dozen Kafka clients with a few connections to each broker; a cluster of 100
# brokers takes some 2,000 files.
FILES_MIN = 4096
# Older ones skip records after error events (librdkafka #4844).
CLIENT_MIN = (2, 15)


def judge_host(host: Host, config: CheckerConfig) -> Iterator[Finding]:
    """Yield what is wrong with the machine that this runs on."""
    yield from _packages(host)
    yield from _memory(host, config)
    if 0 < host.files_max < FILES_MIN:
        what = f"a process of this shell may open {host.files_max} files; {FILES_MIN} are wanted"
        yield finding("open-files", what, f"ulimit -n {FILES_MIN}")


def _packages(host: Host) -> Iterator[Finding]:
    for name, place in sorted(host.foreign.items()):
        what = f"{name} is imported from {place}, which is not of this installation"
        yield finding("package", what, "python -m pip install --force-reinstall halfbridge")
    version = tuple(int(part) for part in re.findall(r"\d+", host.kafka_client[0])[:2])
    if version and version < CLIENT_MIN:
        wanted = ".".join(map(str, CLIENT_MIN))
        what = f"confluent-kafka {host.kafka_client[0]} is older than {wanted}"
        mend = f"python -m pip install 'confluent-kafka>={wanted}'"
        yield finding("client-library", what, mend)


def _memory(host: Host, config: CheckerConfig) -> Iterator[Finding]:
    budgets = config.entries_bytes_max + config.ledger_bytes_max
    needed = config.workers * (budgets + PROCESS_BYTES)
    if 0 < host.memory_bytes < needed:
        left = host.memory_bytes // config.workers - PROCESS_BYTES - config.ledger_bytes_max
        fitting = max(64 * 1024, left * 9 // 10)
        what = (
            f"{config.workers} workers may take {needed >> 20} MiB (entries_bytes_max,"
            f" ledger_bytes_max and {PROCESS_BYTES >> 20} MiB each); this machine or container has"
            f" {host.memory_bytes >> 20} MiB"
        )
        yield finding("memory", what, f"export HALFBRIDGE_ENTRIES_BYTES_MAX={fitting}")
