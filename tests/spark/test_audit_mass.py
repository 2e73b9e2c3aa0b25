"""A million transactions with a hundred known defects: exactly those are found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.installation import Installation
from tests.spark.audit_mass import DEFECTS, PAIRS, REAL_PARTITIONS, Mass

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.spark_long]

TRANSACTIONS = int(os.environ.get("HALFBRIDGE_AUDIT_TRANSACTIONS", "1000000"))
AUDIT_S_MAX = 1_500.0  # on a machine that does other things too; the figure is what is printed


@pytest.mark.timeout(3_000)
def test_defects_among_a_million(
    kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    """Each seeded defect is named with its kind and transaction, and nothing else is."""
    installation = Installation(kafka_bootstrap_servers, topic_prefix)
    try:
        installation.make(partitions=PAIRS)
        installation.topic("orders", partitions=REAL_PARTITIONS)
        mass = Mass(installation)
        mass.write(TRANSACTIONS)
        report, findings = _audit(installation, tmp_path)
    finally:
        installation.close()
    print(f"audit of {TRANSACTIONS:,} transactions: {report['seconds']} s")
    found = {(each["kind"], each["transaction_id"]) for each in findings}
    assert found == mass.defects
    assert len(findings) == len(mass.defects)
    assert TRANSACTIONS < 100_000 or {kind for kind, _ in found} == set(DEFECTS)
    assert report["transactions"]["all"] == TRANSACTIONS
    assert sum(report["records"].values()) == sum(mass.records.values())


def _audit(installation: Installation, directory: Path) -> tuple[dict, list[dict]]:
    """Return report and findings of the command, in a process of its own as a user runs it."""
    table, path = directory / "findings", directory / "report.json"
    words = ["--bootstrap-servers", installation.servers, "--prefix", installation.names.prefix]
    words += ["--topic", installation.real("orders")]
    words += ["--findings", str(table), "--report", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "halfbridge", "spark", "audit", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=AUDIT_S_MAX,
    )
    assert done.returncode == 2, done.stderr[-4_000:]
    report = json.loads(path.read_text())
    import pyarrow.parquet as pq  # noqa: PLC0415  (only here is it needed)

    return report, pq.read_table(table).to_pylist()
