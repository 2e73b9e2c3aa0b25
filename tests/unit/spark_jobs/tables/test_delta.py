"""What a Delta table's transactions rest on; no JVM is started here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from halfbridge.spark_jobs.tables.delta import _fields, _partition_values

deltalake = pytest.importorskip("deltalake")

COLUMN = {"name": "x", "type": "long", "nullable": True, "metadata": {}}


def test_two_drivers_cannot_both_write_a_batch(tmp_path: Path) -> None:
    """Of two that began before either committed, the second one fails: delta-rs tells by app id.

    Without that, a driver whose JVM outlives it would write a batch that its successor writes too.
    """
    from deltalake.transaction import AddAction, CommitProperties, Transaction  # noqa: PLC0415  # an extra

    schema = deltalake.Schema.from_json(json.dumps({"type": "struct", "fields": [COLUMN]}))
    deltalake.DeltaTable.create(tmp_path, schema)
    first, second = (deltalake.DeltaTable(tmp_path) for _ in range(2))

    def commit(table: Any, name: str) -> None:
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(pa.table({"x": [1]}), path)
        table.create_write_transaction(
            [AddAction(path.name, path.stat().st_size, {}, 0, True, '{"numRecords": 1}')],
            "append",
            schema,
            commit_properties=CommitProperties(app_transactions=[Transaction("app", 0)]),
        )

    commit(first, "first")
    with pytest.raises(deltalake.exceptions.DeltaError, match=r"[Cc]oncurrent"):
        commit(second, "second")
    table = deltalake.DeltaTable(tmp_path)
    assert [uri.rpartition("/")[2] for uri in table.file_uris()] == ["first.parquet"]
    assert table.transaction_version("app") == 0


def test_partition_values_stand_in_a_files_directories() -> None:
    """As Spark writes them; its word for null is not a value."""
    path = "publish_date=2026-11-21/quarantined=__HIVE_DEFAULT_PARTITION__/part-0.parquet"
    assert _partition_values(path) == {"publish_date": "2026-11-21", "quarantined": None}


def test_schemas_are_compared_without_nullability() -> None:
    """Spark says of some columns that they cannot be null; a table's are always nullable."""
    headers = {"type": "array", "elementType": "binary", "containsNull": False}
    strict = {"name": "h", "type": headers, "nullable": False, "metadata": {}}
    loose = {**strict, "type": {**headers, "containsNull": True}, "nullable": True}
    assert _fields({"fields": [strict]}) == _fields({"fields": [loose]})
    other = {**loose, "type": {**headers, "elementType": "string"}}
    assert _fields({"fields": [strict]}) != _fields({"fields": [other]})
