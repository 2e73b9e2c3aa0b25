"""A worker's tracing: off by default, with an exporter, and errors for missing packages."""

import os
import subprocess
import sys

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.process.tracing import worker_tracing

pytestmark = pytest.mark.process

SCRIPT = """
import os
import sys
{before}
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.process.tracing import flush_spans, span_exporter, worker_tracing
from halfbridge.kafka.errors import ConfigError
try:
    config = CheckerConfig(bootstrap_servers="b:1", tracing=True)
    worker_tracing(config, span_exporter(os.environ))
except ConfigError as error:
    sys.exit(str(error))
from opentelemetry.trace import get_tracer
get_tracer("x").start_span("a span").end()
flush_spans()
"""


def run(before: str, exporter: str) -> subprocess.CompletedProcess[str]:
    """Set up tracing in a separate process, which has its own provider."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before)],
        env={**os.environ, "OTEL_TRACES_EXPORTER": exporter},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_tracing_is_off_by_default() -> None:
    """Without the setting a worker has no tracer."""
    assert worker_tracing(CheckerConfig(bootstrap_servers="b:1")) is None


def test_opentelemetrys_variables_choose_the_exporter() -> None:
    """OTEL_TRACES_EXPORTER selects the exporter, and flush_spans exports pending spans."""
    done = run("", "console")
    assert done.returncode == 0, done.stderr
    assert '"name": "a span"' in done.stdout


@pytest.mark.parametrize(
    ("before", "exporter", "advice"),
    [
        ("", "nowhere", "opentelemetry-exporter-otlp-proto-http"),
        ("sys.modules['opentelemetry.sdk.trace'] = None", "console", "halfbridge[otel]"),
        ("sys.modules['opentelemetry'] = None", "console", "halfbridge[otel]"),
    ],
)
def test_what_is_missing_is_named(before: str, exporter: str, advice: str) -> None:
    """A worker that cannot trace as configured exits with an error that names the package."""
    done = run(before, exporter)
    assert done.returncode == 1
    assert advice in done.stderr
    assert "Traceback" not in done.stderr
