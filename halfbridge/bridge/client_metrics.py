"""The figures of producers in this process, as metrics of Prometheus or of OpenTelemetry.

Loaded by the producers' `collector` and `register_meters`, so that a service without metrics does
not import it.
"""

from __future__ import annotations

from collections import Counter as Counted
from dataclasses import asdict
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from prometheus_client import Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from halfbridge.bridge.delivery import HALF_MESSAGE
from halfbridge.extras import needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client.core import Metric

    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.bridge.delivery import Figures

    # A producer's group, and its method `figures`.
    Source: TypeAlias = tuple[str, Callable[[], Figures | None]]
    Samples: TypeAlias = list[tuple[Mapping[str, str], int]]


class Measured(Protocol):
    """A producer, blocking or asynchronous."""

    @property
    def config(self) -> BridgeConfig:
        """Its settings, which name the producer group."""

    def figures(self) -> Figures | None:
        """Return what it has done so far; None: not started, or made before a fork."""


class Description(NamedTuple):
    """What a metric counts."""

    text: str
    labels: tuple[str, ...] = ()
    is_counter: bool = True


_PREFIX = "halfbridge_client_"
_METERS_PREFIX = "halfbridge."
_GROUP = "producer_group"
# Either name turns prometheus_client's multiprocess mode on.
_MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
# How late multiprocess mode shows a figure. A copy takes some ten microseconds.
_COPY_S = 1.0
# Name -> description. `labels` are those besides the producer group.
DESCRIPTIONS = {
    "half_messages": Description(
        "Half messages, by whether a broker acknowledged them: stored, or failed.", ("outcome",)
    ),
    "decisions": Description(
        "Decisions, by whether a broker acknowledged them; a check settles a failed one.",
        ("decision", "outcome"),
    ),
    "decisions_failed": Description(
        "Failed decisions that no thread awaited: the caller did not get the error."
    ),
    "in_flight": Description(
        "Records that brokers have not acknowledged yet, at most in_flight_max.", is_counter=False
    ),
    "checks": Description(
        "Checks and failures of the responder, by the attributes of CheckCounts.", ("outcome",)
    ),
    "checkers_hung": Description(
        "Checkers that have exceeded check_timeout_ms and have not returned.", is_counter=False
    ),
}


class ClientCollector(Collector):
    """Yields metrics whose names begin with `halfbridge_client_`, labelled by producer group."""

    def __init__(self, producers: Iterable[Source]) -> None:
        self._producers = tuple(producers)

    def collect(self) -> Iterator[Metric]:
        """Return the families; called by the registry."""
        for name, samples in families(self._producers).items():
            text, labels, is_counter = DESCRIPTIONS[name]
            kind = CounterMetricFamily if is_counter else GaugeMetricFamily
            family = kind(_PREFIX + name, text, labels=(_GROUP, *labels))
            for values, value in samples:
                family.add_metric(tuple(values.values()), value)
            yield family


def is_multiprocess(environ: Mapping[str, str]) -> bool:
    """Return whether `environ` turns prometheus_client's multiprocess mode on."""
    return any(name in environ for name in _MULTIPROCESS)


class MultiprocessCollector(Collector):
    """Copies the figures into the files of prometheus_client's multiprocess mode.

    That mode shows no custom collector: the process that is scraped reads the values of all
    processes from files. So `collect` yields nothing.
    """

    def __init__(self, producers: Iterable[Source]) -> None:
        self._producers = tuple(producers)
        self._lock = Lock()
        self._copied: dict[tuple[str, ...], int] = {}
        self._metrics: dict[str, Any] = {}
        for name, (text, labels, is_counter) in DESCRIPTIONS.items():
            given: dict[str, Any] = {"labelnames": (_GROUP, *labels), "registry": None}
            self._metrics[name] = (
                Counter(_PREFIX + name, text, **given)
                if is_counter
                else Gauge(_PREFIX + name, text, multiprocess_mode="livesum", **given)
            )

    def collect(self) -> Iterable[Metric]:
        """Copy the figures; called by the registry."""
        self.copy()
        return ()

    def copy(self) -> None:
        """Copy the figures as they are now."""
        with self._lock:
            for name, samples in families(self._producers).items():
                for labels, value in samples:
                    key = (name, *labels.values())
                    # Counters have no `set`.
                    self._metrics[name].labels(**labels).inc(value - self._copied.get(key, 0))
                    self._copied[key] = value

    def follow(self, pause: Callable[[float], None]) -> None:
        """Copy the figures each second, as long as the process lives."""
        while True:
            self.copy()
            pause(_COPY_S)


def register_meters(producers: Sequence[Source], provider: MeterProvider | None) -> None:
    """Register an instrument `halfbridge.client.*` for each of the metrics `halfbridge_client_*`.

    The provider asks for all figures when it exports. Attributes are the labels, as
    `halfbridge.producer_group`. ModuleNotFoundError: opentelemetry-api is not installed; the user
    installs it.
    """
    try:
        from opentelemetry.metrics import Observation, get_meter  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(needs("meters", "opentelemetry"), name=error.name) from error

    def observe(name: str, _: CallbackOptions) -> Iterable[Observation]:
        for labels, value in families(producers)[name]:
            attributes = {_METERS_PREFIX + label: text for label, text in labels.items()}
            yield Observation(value, attributes)

    meter = get_meter("halfbridge", meter_provider=provider)
    for name, description in DESCRIPTIONS.items():
        make = (
            meter.create_observable_counter
            if description.is_counter
            else meter.create_observable_gauge
        )
        make(
            f"{_METERS_PREFIX}client.{name}",
            callbacks=[partial(observe, name)],
            description=description.text,
        )


def families(producers: Iterable[Source]) -> dict[str, Samples]:
    """Return for each of DESCRIPTIONS the samples: labels (all of them), and the value.

    Producers of one group are summed. One that is not started, or was made before a fork, counts
    nothing.
    """
    sums: dict[str, Counted[tuple[tuple[str, str], ...]]] = {
        name: Counted() for name in DESCRIPTIONS
    }
    for group, ask in producers:
        figures = ask()
        if figures is None:
            continue
        for name, labels, value in _samples(figures):
            key = ((_GROUP, group), *labels.items())
            sums[name][key] += value
    return {
        name: [(dict(labels), value) for labels, value in counted.items()]
        for name, counted in sums.items()
    }


def _samples(figures: Figures) -> Iterator[tuple[str, dict[str, str], int]]:
    """Yield a metric's name, labels besides the group, and value."""
    for (record, outcome), count in figures.outcomes.items():
        if record == HALF_MESSAGE:
            yield "half_messages", {"outcome": outcome}, count
        else:
            yield "decisions", {"decision": record, "outcome": outcome}, count
    yield "decisions_failed", {}, figures.failed_decisions
    yield "in_flight", {}, figures.in_flight
    counts = asdict(figures.checks)
    yield "checkers_hung", {}, counts.pop("hung")
    for outcome, count in counts.items():
        yield "checks", {"outcome": outcome}, count
