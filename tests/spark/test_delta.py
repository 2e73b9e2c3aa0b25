"""Committing to a Delta table while another run commits the same, and reading it back."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from halfbridge.spark_jobs.tables.delta import read_table
from halfbridge.spark_jobs.tables.storage import Storage, StoredFile

DeltaTable = pytest.importorskip("deltalake").DeltaTable

from halfbridge.spark_jobs.tables.delta_rs import DeltaWriter  # noqa: E402  # needs it

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

APP = "ingest of orders"
ROWS = 10


class Held(Storage):
    """A storage whose user is overtaken when its files are written and not yet committed."""

    def __init__(self, spark: SparkSession, overtake: Callable[[], None]) -> None:
        super().__init__(spark)
        self._overtake = overtake

    def files(self, directory: str, suffix: str) -> list[StoredFile]:
        """Let the other one overtake, then list the files."""
        self._overtake()
        return super().files(directory, suffix)


def batch(spark: SparkSession) -> DataFrame:
    """Return a batch's rows, of two partitions."""
    return spark.range(ROWS).selectExpr("id", "cast(id % 2 as string) as half")


def transactions(table: Path) -> Iterator[tuple[str, int]]:
    """Yield application and version of each transaction in the table's log."""
    for path in sorted((table / "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            if txn := json.loads(line).get("txn"):
                yield txn["appId"], txn["version"]


@pytest.mark.parametrize("moment", ["files are written", "table is opened"])
@pytest.mark.parametrize("others", [[0], [0, 1]], ids=["the same batch", "and the next one"])
def test_a_run_that_was_overtaken_appends_nothing(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    others: list[int],
    moment: str,
) -> None:
    """Of two runs with the same batch the second one to commit says that it appended nothing.

    It is overtaken before it opens the table to commit, or behind that, where delta-rs tells.
    """
    first, second = (DeltaWriter(spark, str(tmp_path), ["half"]) for _ in range(2))
    appended: list[bool] = []

    def overtake() -> None:
        appended.extend(second.append(batch(spark), app_id=APP, version=each) for each in others)

    if moment == "files are written":
        first._storage = Held(spark, overtake)  # a moment that nobody can hit
    else:
        commit = DeltaTable.create_write_transaction

        def held(table: Any, *words: Any, **named: Any) -> None:
            monkeypatch.undo()
            overtake()
            commit(table, *words, **named)

        monkeypatch.setattr(DeltaTable, "create_write_transaction", held)
    assert not first.append(batch(spark), app_id=APP, version=0)
    assert appended == [True] * len(others)
    assert list(transactions(tmp_path)) == [(APP, each) for each in others]
    table = read_table(spark, str(tmp_path))
    assert table is not None
    assert table.count() == ROWS * len(others)


@pytest.mark.parametrize("moment", ["files are written", "table is made"])
def test_a_run_under_another_name_is_no_obstacle(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Both append, also where both found that there is no table yet and make it."""
    first, second = (DeltaWriter(spark, str(tmp_path), ["half"]) for _ in range(2))

    def overtake() -> None:
        assert second.append(batch(spark), app_id="another", version=0)

    if moment == "files are written":
        first._storage = Held(spark, overtake)
    else:
        create = DeltaTable.create

        def held(*words: Any, **named: Any) -> Any:
            monkeypatch.undo()
            overtake()
            return create(*words, **named)

        monkeypatch.setattr(DeltaTable, "create", held)
    assert first.append(batch(spark), app_id=APP, version=0)
    table = read_table(spark, str(tmp_path))
    assert table is not None
    assert table.count() == 2 * ROWS
