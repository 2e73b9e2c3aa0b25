"""Sets a process's tracing up: by its tracer provider, or by OpenTelemetry's variables.

OpenTelemetry is imported late: a process without tracing does not need it.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from halfbridge.extras import install
from halfbridge.kafka.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.tracing import WorkerTracing

_EXPORTERS = "opentelemetry_traces_exporter"  # the entry points of OpenTelemetry's exporters
_VARIABLE = "OTEL_TRACES_EXPORTER"
DEFAULT_EXPORTER = "otlp"
_OTLP = ("otlp_proto_http", "otlp_proto_grpc")


def span_exporter(environ: Mapping[str, str]) -> str:
    """Return the name of the exporter that OpenTelemetry's variable gives, else its default."""
    return environ.get(_VARIABLE) or DEFAULT_EXPORTER


def worker_tracing(config: CheckerConfig, exporter: str = DEFAULT_EXPORTER) -> WorkerTracing | None:
    """Return what makes the worker's spans; None: tracing is off, and nothing is imported.

    Spans go to `exporter`, if the process has no tracer provider yet.

    Raises:
        ConfigError: OpenTelemetry or its exporter is not installed; the operator installs it.
    """
    if not config.tracing:
        return None
    export_spans(exporter)
    from halfbridge.checker.loop.tracing import WorkerTracing  # noqa: PLC0415  (see above)

    return WorkerTracing()


def export_spans(exporter: str) -> None:
    """Have the process's spans go to `exporter`, if it has no tracer provider yet.

    Raises:
        ConfigError: OpenTelemetry or its exporter is not installed; the operator installs it.
    """
    try:
        _set_provider(exporter)
    except ModuleNotFoundError as error:
        raise _refused(f"false, or {install('opentelemetry')}") from error


def flush_spans() -> None:
    """Export the spans that wait, before a process ends that runs no exit handlers."""
    from opentelemetry import trace  # noqa: PLC0415  (see above)

    provider = trace.get_tracer_provider()
    if hasattr(provider, "force_flush"):
        provider.force_flush()


def _set_provider(name: str) -> None:
    from opentelemetry import trace  # noqa: PLC0415  (see above)

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return  # the process has one already
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  (see above)
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  (see above)

    found = {each.name: each for each in metadata.entry_points(group=_EXPORTERS)}
    names = _OTLP if name == DEFAULT_EXPORTER else (name,)
    exporter = next((found[each] for each in names if each in found), None)
    if exporter is None:
        raise _refused(
            "false, or a span exporter that is installed:"
            f" {_VARIABLE}={name} needs a package such as"
            " opentelemetry-exporter-otlp-proto-http"
        )
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter.load()()))
    trace.set_tracer_provider(provider)


def _refused(allowed: str) -> ConfigError:
    return ConfigError(field="tracing", value="true", origin="the configuration", allowed=allowed)
