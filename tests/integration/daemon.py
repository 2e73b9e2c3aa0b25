"""A worker under test, in a thread of this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.process.http import HttpServer, serve
from halfbridge.checker.process.service import run_worker
from halfbridge.checker.status import Status
from tests.kit.http import answer_of
from tests.kit.waiting import SETTLED_S, until


class Daemon:
    """One worker in a thread of this process, with its metrics and health on a port."""

    def __init__(self, config: CheckerConfig, slot: str) -> None:
        self.config = config
        self.slot = slot
        self.status = Status()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._server: HttpServer | None = None
        self._thread = threading.Thread(target=self._run, name=f"worker-{slot}", daemon=True)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have `labels`; 0 before it was counted."""
        return sum(
            sample.value
            for family in self.status.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def counts(self, name: str, wanted: float, **labels: str) -> None:
        """Return once a metric has reached exactly `wanted`; it is set after the kafka_txn."""
        until(
            f"{name}{labels or ''} = {wanted}, now {self.metric(name, **labels)}",
            lambda: self._raise() or self.metric(name, **labels) == wanted,
        )

    def healthz(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of /healthz, over HTTP."""
        assert self._server is not None
        status, body = answer_of(f"http://127.0.0.1:{self._server.port}/healthz")
        return status, json.loads(body)

    def ready(self) -> Daemon:
        """Return once every partition that is not stopped has been rebuilt."""
        until("worker is ready", lambda: self._raise() or self.status.snapshot().ready)
        return self

    def stopped(self, partition: int) -> str:
        """Return why `partition` stopped, once it has."""
        errors: Mapping[int, str] = until(
            f"partition {partition} stops", lambda: self._raise() or self._stopped_with(partition)
        )
        return errors[partition]

    def stop(self) -> None:
        """Stop in order; raise what the worker raised. Idempotent."""
        self._stop.set()
        self._thread.join(SETTLED_S)
        assert not self._thread.is_alive(), "the worker does not end"
        if self._server is not None:
            self._server.close()
            self._server = None
        self._raise()

    def start(self) -> Daemon:
        """Start; `ready` says when it serves."""
        self._server = serve(self.status.metrics.registry, self.status.snapshot)
        self._thread.start()
        return self

    def _stopped_with(self, partition: int) -> Mapping[int, str] | None:
        errors = self.status.snapshot().partition_errors
        return errors if partition in errors else None

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        try:
            run_worker(self.config, slot=self.slot, stop=self._stop, status=self.status)
        except BaseException as error:  # noqa: BLE001 (raised again in the test's thread)
            self._error = error
