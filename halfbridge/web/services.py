"""What the routes and pages of one server share."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.kafka.signatures import load_signatures
from halfbridge.serde.signing_keys import Role
from halfbridge.web.gate import Gate
from halfbridge.web.guards import Refusal
from halfbridge.web.watch import Watch
from halfbridge.web.work import Answers, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from halfbridge.kafka.ports import Ports
    from halfbridge.web.config import WebConfig


CHANGE_WAIT_S = 5.0  # a browser waits; most changes take less than a second


class Services:
    """All that answers requests. ConfigError: the operator corrects the token or key file."""

    def __init__(
        self,
        config: WebConfig,
        *,
        ports: Ports | None = None,
        pool: Executor | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.gate = Gate(config, monotonic=monotonic)
        self.work = Work(pool)
        self.answers = Answers(self.work)
        self.watch = Watch(config.metrics_urls, self.work, monotonic=monotonic)
        self.ports = ports
        self._lock = threading.Lock()
        self._change = threading.Lock()
        self._cluster: Cluster | None = None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let nobody else change anything meanwhile; refuses by 409 after `CHANGE_WAIT_S`."""
        if not self._change.acquire(timeout=CHANGE_WAIT_S):
            raise Refusal(409, "another change is under way: repeat this one")
        try:
            yield
        finally:
            self._change.release()

    def cluster(self) -> Cluster:
        """Return the cluster, connected at the first call. Thread-safe."""
        with self._lock:
            if self._cluster is None:
                config = self.config
                self._cluster = Cluster(
                    config.bootstrap_servers,
                    kafka=config.kafka,
                    ports=self.ports,
                    signatures=load_signatures(config.key_file, Role.OPERATOR, config.names),
                )
            return self._cluster
