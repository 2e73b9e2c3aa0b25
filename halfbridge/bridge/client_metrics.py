"""The figures of producers in this process, for `prometheus_client`; users register the collector.

Loaded by `TransactionProducer.collector`, so that a service without metrics does not import it.
"""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from halfbridge.bridge.delivery import HALF_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric

    from halfbridge.bridge.delivery import Figures


_LOG = logging.getLogger("halfbridge.bridge")
_GROUP = "producer_group"
# prometheus_client's own variables: either one makes its values files that another process reads.
_MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


class ClientCollector(Collector):
    """Yields metrics whose names begin with `halfbridge_client_`, labelled by producer group.

    A producer that is not started, or was made before a fork, has no series. Logs a warning under
    prometheus_client's multiprocess mode, which shows no custom collector: the process that is
    scraped reads values from files, and has no producer of the others to ask.

    Args:
        producers: For each its producer group, and its method `figures`.
    """

    def __init__(self, producers: Iterable[tuple[str, Callable[[], Figures | None]]]) -> None:
        self._producers = tuple(producers)
        if any(name in os.environ for name in _MULTIPROCESS):
            _LOG.warning(
                "PROMETHEUS_MULTIPROC_DIR is set, and prometheus_client's multiprocess mode shows"
                " no custom collector: serve the registry of this collector in each process"
            )

    def collect(self) -> Iterator[Metric]:
        """Return the families; called by the registry."""
        halves = CounterMetricFamily(
            "halfbridge_client_half_messages",
            "Half messages, by whether a broker acknowledged them: stored, or failed.",
            labels=(_GROUP, "outcome"),
        )
        decisions = CounterMetricFamily(
            "halfbridge_client_decisions",
            "Decisions, by whether a broker acknowledged them; a check settles a failed one.",
            labels=(_GROUP, "decision", "outcome"),
        )
        not_awaited = CounterMetricFamily(
            "halfbridge_client_decisions_failed",
            "Failed decisions that no thread awaited: the caller did not get the error.",
            labels=(_GROUP,),
        )
        in_flight = GaugeMetricFamily(
            "halfbridge_client_in_flight",
            "Records that brokers have not acknowledged yet, at most in_flight_max.",
            labels=(_GROUP,),
        )
        checks = CounterMetricFamily(
            "halfbridge_client_checks",
            "Checks and failures of the responder, by the attributes of CheckCounts.",
            labels=(_GROUP, "outcome"),
        )
        hung = GaugeMetricFamily(
            "halfbridge_client_checkers_hung",
            "Checkers that have exceeded check_timeout_ms and have not returned.",
            labels=(_GROUP,),
        )
        for group, ask in self._producers:
            figures = ask()
            if figures is None:
                continue
            for (record, outcome), count in figures.outcomes.items():
                if record == HALF_MESSAGE:
                    halves.add_metric((group, outcome), count)
                else:
                    decisions.add_metric((group, record, outcome), count)
            not_awaited.add_metric((group,), figures.failed_decisions)
            in_flight.add_metric((group,), figures.in_flight)
            counts = asdict(figures.checks)
            hung.add_metric((group,), counts.pop("hung"))
            for outcome, count in counts.items():
                checks.add_metric((group, outcome), count)
        yield from (halves, decisions, not_awaited, in_flight, checks, hung)
