"""Measures the audit: a million finished transactions on a broker of its own, then the command.

    python tests/spark/bench_audit.py --transactions 1000000 --rounds 3

Every round is a process of its own, as a user runs it: the JVM's start is part of the time. Each
must find exactly the seeded defects, or the bench fails. Prints one JSON object.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file, not as a module

from halfbridge.testkit.broker import EmbeddedBroker
from tests.integration.installation import Installation
from tests.spark.audit_mass import PAIRS, REAL_PARTITIONS, VALUE_BYTES, Mass

ROUND_S_MAX = 1_800.0


@click.command()
@click.option("--transactions", default=1_000_000, show_default=True)
@click.option("--value-bytes", default=VALUE_BYTES, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(*, transactions: int, value_bytes: int, rounds: int) -> None:
    """Run the bench."""
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as directory:
        installation = Installation(broker.bootstrap_servers, "bench-")
        try:
            installation.make(partitions=PAIRS)
            installation.topic("orders", partitions=REAL_PARTITIONS)
            mass = Mass(installation, value_bytes)
            started_s = monotonic()
            mass.write(transactions)
            filled_s = monotonic() - started_s
            reports = [_round(installation, Path(directory), mass) for _ in range(rounds)]
        finally:
            installation.close()
    seconds = [report["seconds"] for report in reports]
    result: dict[str, Any] = {
        "transactions": transactions,
        "records": sum(mass.records.values()),
        "value_bytes": value_bytes,
        "defects": len(mass.defects),
        "seconds": seconds,
        "seconds_median": median(seconds),
        "records_per_s": round(sum(mass.records.values()) / median(seconds)),
        "filled_s": round(filled_s, 1),
    }
    click.echo(json.dumps(result))


def _round(installation: Installation, directory: Path, mass: Mass) -> dict[str, Any]:
    path = directory / "report.json"
    words = ["--bootstrap-servers", installation.servers, "--prefix", installation.names.prefix]
    words += ["--topic", installation.real("orders"), "--report", str(path)]
    command = [sys.executable, "-m", "halfbridge", "spark", "audit", *words]
    subprocess.run(command, check=False, timeout=ROUND_S_MAX, stdout=sys.stderr)
    report: dict[str, Any] = json.loads(path.read_text())
    if report["violations"] != len(mass.defects):
        raise click.ClickException(f"{report['violations']} found, {len(mass.defects)} seeded")
    path.unlink()
    return report


if __name__ == "__main__":
    main()
