"""One worker, from its slot to its exit status."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.checker.errors import EXIT_OK
from halfbridge.checker.loop.intake import FirstReads
from halfbridge.checker.loop.worker import Worker
from halfbridge.checker.policy import load_policy
from halfbridge.checker.process.settings_topic import settings_record
from halfbridge.checker.process.slots import slot_ids
from halfbridge.checker.process.tracing import DEFAULT_EXPORTER, flush_spans, worker_tracing
from halfbridge.checker.signatures import daemon_signatures
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.first_reads import probe

if TYPE_CHECKING:
    import threading

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.status import Status
    from halfbridge.kafka.ports import Ports

_log = logging.getLogger("halfbridge.checker")

# Garbage collection visits every record that the ledgers hold and finds no garbage, because the
# loop makes no cycles. With Python's own thresholds (700, 10, 10) it took about a fifth of the CPU
# under load (docs/evidence/benchmarks.md). Young objects are still collected now and then, since
# exceptions with tracebacks make cycles.
GC_THRESHOLDS = (1_000_000, 50, 1_000)
# Six Kafka clients have some thirty threads, and glibc gives each thread a heap of its own that
# never shrinks (M_ARENA_MAX in malloc.h).
MALLOC_ARENA_MAX = -8
MALLOC_ARENAS = 2  # one for the loop, one for the clients' threads


def run_worker(
    config: CheckerConfig,
    *,
    slot: str,
    stop: threading.Event,
    status: Status,
    ports: Ports | None = None,
    exporter: str = DEFAULT_EXPORTER,
) -> int:
    """Serve as the worker on `slot` until `stop` is set; return the exit status.

    `exporter` is OpenTelemetry's name of where spans go.

    Raises:
        ConfigError: the policy or key file cannot be used; the operator corrects it.
        SlotTakenError: another worker runs on this slot; the operator stops one of the two.
    """
    policy = load_policy(config.policy_file, names=config.names)
    signatures = daemon_signatures(config)
    tracing = worker_tracing(config, exporter)
    ids, ports = slot_ids(slot, topic_prefix=config.topic_prefix), ports or system_ports()
    worker = Worker(
        config,
        policy,
        ids=ids,
        status=status,
        ports=ports,
        signatures=signatures,
        first_reads=FirstReads(config, ports, probe),
        tracing=tracing,
    )
    _log.info("worker on slot %s starts, process %d", slot, os.getpid())
    record = settings_record(config, slot, status, ports)
    record.start()
    try:
        worker.run(stop)
    finally:
        record.stop()
        if tracing is not None:
            flush_spans()
    status.set_ready(ready=False, reason="stopped")
    _log.info("worker on slot %s ends", slot)
    return EXIT_OK


def tame_memory() -> None:
    """Tune the collector and the allocator of this process for a worker; undone by nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a C library without mallopt needs no setting
            ctypes.CDLL(None).mallopt(MALLOC_ARENA_MAX, MALLOC_ARENAS)
