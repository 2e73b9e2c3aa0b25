"""Measures the audit: a million finished transactions on a broker of its own, then the command.

    python tests/spark/bench_audit.py --transactions 1000000 --rounds 3 --new 10000

Every round is a process of its own, as a user runs it: the JVM's start is part of the time. Each
must find exactly the seeded defects, or the bench fails. With `--new` a further round makes a
state, and --rounds rounds continue it, each after --new more transactions. Prints one JSON object.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from threading import Timer
from time import monotonic
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file, not as a module

from halfbridge.testkit.broker import EmbeddedBroker
from tests.integration.installation import Installation
from tests.spark.audit_mass import PAIRS, REAL_PARTITIONS, VALUE_BYTES, Mass

ROUND_S_MAX = 1_800.0
ANSWERED = 1_000  # one late answer names an old transaction per this many new ones


@click.command()
@click.option("--transactions", default=1_000_000, show_default=True)
@click.option("--value-bytes", default=VALUE_BYTES, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--new", default=0, show_default=True)
def main(*, transactions: int, value_bytes: int, rounds: int, new: int) -> None:
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
            records = sum(mass.records.values())
            whole = [_round(installation, Path(directory), mass) for _ in range(rounds)]
            state = ("--state", str(Path(directory, "state")))
            continued = []
            if new:
                continued.append(_round(installation, Path(directory), mass, *state))
            for _ in range(rounds if new else 0):
                mass.write(new, answers=new // ANSWERED)
                continued.append(_round(installation, Path(directory), mass, *state))
        finally:
            installation.close()
    seconds = [each["seconds"] for each in whole]
    result: dict[str, Any] = {
        "transactions": transactions,
        "records": records,
        "value_bytes": value_bytes,
        "defects": len(mass.defects),
        "seconds": seconds,
        "seconds_median": median(seconds),
        "records_per_s": round(records / median(seconds)),
        "filled_s": round(filled_s, 1),
        "steps": [each["steps"] for each in whole],
        "continued": [each["steps"] for each in continued],
    }
    click.echo(json.dumps(result))


def _round(installation: Installation, directory: Path, mass: Mass, *more: str) -> dict[str, Any]:
    """Return the report of one run, and with it the seconds from the start to each line."""
    path = directory / "report.json"
    words = ["--bootstrap-servers", installation.servers, "--prefix", installation.names.prefix]
    words += ["--topic", installation.real("orders"), "--report", str(path), *more]
    command = [sys.executable, "-m", "halfbridge", "spark", "audit", *words]
    started_s, steps = monotonic(), {}
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=sys.stderr, text=True) as run:
        limit = Timer(ROUND_S_MAX, run.kill)
        limit.daemon = True
        limit.start()
        for line in run.stderr or ():
            sys.stderr.write(line)
            steps[line.removeprefix("audit: ").strip()] = round(monotonic() - started_s, 1)
        limit.cancel()
    steps["end"] = round(monotonic() - started_s, 1)
    report: dict[str, Any] = json.loads(path.read_text())
    if report["violations"] != len(mass.defects):
        raise click.ClickException(f"{report['violations']} found, {len(mass.defects)} seeded")
    path.unlink()
    return {**report, "steps": steps}


if __name__ == "__main__":
    main()
