"""What the command refuses before a JVM is started."""

import pytest
from click.testing import CliRunner

from halfbridge.spark_jobs.ingest import main

RIGHT = [
    *("--bootstrap-servers", "localhost:9092", "--output", "table", "--checkpoint", "checkpoint")
]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--topic", "orders"], "--bootstrap-servers"),
        (RIGHT, "topics by name, or a pattern"),
        ([*RIGHT, "--topic", "a", "--topic-pattern", "b"], "not both"),
        ([*RIGHT, "--topic", "a,b"], "'a,b' is not the name of one topic"),
        ([*RIGHT, "--topic", "a", "--kafka-opt", "isolation.level=x"], "isolation.level"),
        ([*RIGHT, "--topic", "a", "--schema", "absent.avsc"], "absent.avsc"),
        ([*RIGHT, "--topic", "a", "--trigger", "often"], "available-now"),
        ([*RIGHT, "--topic", "a", "--from", "monday"], "no position"),
        ([*RIGHT, "--topic", "a", "--format", "csv"], "'csv'"),
        ([*RIGHT, "--topic", "a", "--max-offsets", "0"], "--max-offsets"),
        ([*RIGHT, "--topic", "a", "--table", "lake.sales.a"], "either --output or --table"),
        ([*RIGHT[:2], *RIGHT[4:], "--topic", "a"], "either --output or --table"),
        ([*RIGHT, "--topic", "a", "--format", "iceberg"], "iceberg needs --table"),
        (
            [*RIGHT[:2], *RIGHT[4:], "--topic", "a", "--table", "l.s.a", "--format", "parquet"],
            "parquet needs --output",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_status_1(arguments: list[str], named: str) -> None:
    """The line names what is wrong and where help is."""
    done = CliRunner(env={"HALFBRIDGE_BOOTSTRAP_SERVERS": None}).invoke(main, arguments)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert named in line
    assert "--help" in line
