"""The demo's last step, with --spark: Spark reads the real topics and audits the whole run."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfbridge.demo.plan import TOPICS
from halfbridge.spark_jobs.session.jar_settings import (
    CACHE_VARIABLE,
    JARS_VARIABLE,
    SETTINGS_VARIABLE,
)
from halfbridge.testkit.children import ChildFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.demo.result import DemoResult
    from halfbridge.demo.scenario import Stage

_JOB_S_MAX = 900.0  # ten seconds on a quiet machine, far more on a busy one
_DONE, _FINDINGS = 0, 2
# HALFBRIDGE_SPARK_JARS is spelled out: its module needs tomli, which a demo without Spark does not.
_KEPT = (CACHE_VARIABLE, SETTINGS_VARIABLE, JARS_VARIABLE)


@dataclass(frozen=True, slots=True)
class SparkResult:
    """The result of Spark's reading and audit.

    Attributes:
        rows: Rows that Spark read from the real topics.
        differing: Transactions for which Spark and the demo's own consumer read different numbers
            of rows.
        audit: The audit's report.
    """

    rows: int
    differing: int
    audit: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Tell whether Spark and the consumer read the same, and the audit found nothing."""
        return self.differing == 0 and bool(self.audit["clean"])

    def to_json(self) -> dict[str, Any]:
        """Return the object that `halfbridge demo --spark --json` adds."""
        return {
            "ok": self.ok,
            "rows": self.rows,
            "differing": self.differing,
            "transactions": self.audit["transactions"],
            "findings": self.audit["violations"],
        }

    def line(self) -> str:
        """Return the result as one line of text."""
        transactions = self.audit["transactions"]
        told = (
            f"{self.rows:,} rows read; audit of {transactions['all']:,} transactions:"
            f" {self.audit['violations']} findings"
        )
        if self.ok:
            return f"OK by Spark: {told}"
        return f"FAILED by Spark: {told}; {self.differing} transactions differ from the consumer's"


def read_with_spark(stage: Stage, result: DemoResult) -> SparkResult:
    """Read and audit the topics of a finished run with Spark.

    Args:
        stage: The run's environment. Its processes have ended, and its broker still runs.
        result: The demo's own result.

    Raises:
        ChildFailedError: A job failed; its last output is in the message.
        InterruptedRunError: A signal was received.
    """
    stage.display.step("reading the real topics with Spark")
    topics = [word for topic in TOPICS for word in ("--topic", topic)]
    lines = _run(stage, "count-transactions", *topics).splitlines()
    counts = {each["transaction_id"]: each["row_count"] for each in map(json.loads, lines)}
    seen = {name: count for name, count in result.verdict.delivered.items() if count}
    differing = sum(
        counts.get(name, 0) != seen.get(name, 0) for name in counts.keys() | seen.keys()
    )
    stage.display.step("auditing the whole run with Spark")
    audit = json.loads(_run(stage, "audit"))
    return SparkResult(sum(counts.values()), differing, audit)


def _run(stage: Stage, job: str, *arguments: str) -> str:
    """Run a job to its end, and return its output."""
    settings = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HALFBRIDGE_") or name in _KEPT
    }
    servers = ("--bootstrap-servers", stage.bootstrap_servers)
    child = stage.children.start(
        f"spark-{job}",
        (sys.executable, "-m", "halfbridge", "spark", job, *servers, "--json", *arguments),
        environ=settings,
    )
    stage.children.wait_until(
        lambda: child.process.poll() is not None, what=child.name, timeout_s=_JOB_S_MAX
    )
    stage.children.kill(child)  # and its JVM, which ends a moment after the driver
    if child.process.returncode not in (_DONE, _FINDINGS):
        status, words = child.process.returncode, child.last_words()
        raise ChildFailedError(f"{child.name} ended with status {status}\n{words}")
    return child.output.read_text("utf-8")
