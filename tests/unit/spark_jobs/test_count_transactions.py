"""What the command prints and refuses; no JVM is started here."""

import json

import pytest
from click.testing import CliRunner

from halfbridge.spark_jobs.count_transactions import json_lines, main, text_lines

COUNTS = [(None, 4), ("0" * 32, 2), ("1" * 32, 1)]
SERVERS = ["--bootstrap-servers", "localhost:9092"]


def test_json_is_one_object_a_line() -> None:
    """Rows without a transaction have a null id."""
    assert [json.loads(line) for line in json_lines(COUNTS)] == [
        {"transaction_id": transaction_id, "row_count": rows} for transaction_id, rows in COUNTS
    ]


def test_text_aligns_and_ends_with_totals() -> None:
    """Rows without a transaction are told apart from the others."""
    *table, totals = text_lines(COUNTS)
    assert len({len(line) for line in table}) == 1
    assert totals == "transactions: 2, rows: 3, rows without a transaction: 4"


def test_lines_come_as_they_are_counted() -> None:
    """Nothing is collected: a topic may have more transactions than memory holds."""
    counts = iter(COUNTS)
    lines = text_lines(counts)
    next(lines)
    next(lines)
    assert next(counts) == COUNTS[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "orders"], "--bootstrap-servers"),
        (SERVERS, "give topics by name"),
        ([*SERVERS, "--topic", ""], "empty"),
        ([*SERVERS, "--topic", "orders", "--kafka-opt", "novalue"], "NAME=VALUE"),
        (
            [*SERVERS, "--topic", "orders", "--kafka-opt", "isolation.level=read_uncommitted"],
            "isolation.level",
        ),
    ],
)
def test_wrong_usage_is_refused_before_spark_starts(arguments: list[str], message: str) -> None:
    """Exit status 1, as 2 means findings; the error names what is wrong."""
    done = CliRunner(env={"HALFBRIDGE_BOOTSTRAP_SERVERS": None}).invoke(main, arguments)
    assert done.exit_code == 1
    assert message in done.stderr
