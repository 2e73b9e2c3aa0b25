"""What a Delta table's transactions rest on; no JVM is started here."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

deltalake = pytest.importorskip("deltalake")

from halfbridge.spark_jobs.tables.delta_rs import _fields, _partition_values, not_as_parquet  # noqa: E402  # needs it

COLUMN = {"name": "x", "type": "long", "nullable": True, "metadata": {}}


def test_two_drivers_cannot_both_write_a_batch(tmp_path: Path) -> None:
    """Of two that began before either committed, the second one fails: delta-rs tells by app id.

    Without that, a driver whose JVM outlives it would write a batch that its successor writes too.
    """
    from deltalake.transaction import AddAction, CommitProperties, Transaction  # noqa: PLC0415 (an extra)

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


# --- which Delta tables may be read as Parquet; logs as the protocol has them, and no JVM --

PLAIN = {"minReaderVersion": 1, "minWriterVersion": 2}

# An example of Delta's: rows 3, 4, 7, 11, 18 and 29 are deleted.
VECTOR = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "sizeInBytes": 44,
    "cardinality": 6,
}


def featured(*features: str) -> dict[str, Any]:
    """Return a protocol with these features for readers and writers."""
    listed = list(features)
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": listed,
        "writerFeatures": listed,
    }


def table(
    directory: Path,
    *,
    protocol: dict[str, Any] | None = None,
    configuration: dict[str, str] | None = None,
    path: str = "day=1/part-0.parquet",
    **more: Any,
) -> Any:
    """Return a table of one file, partitioned by day."""
    columns = [
        {
            "name": name,
            "type": "string",
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{number}",
            }
            if configuration
            else {},
        }
        for number, name in enumerate(("x", "day"), 1)
    ]
    metadata = {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": ["day"],
        "configuration": configuration or {},
        "createdTime": 0,
    }
    file = {
        "path": path,
        "partitionValues": {"col-2" if configuration else "day": "1"},
        "size": 1,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords": 30}',
        **more,
    }
    actions = [{"protocol": protocol or PLAIN}, {"metaData": metadata}, {"add": file}]
    log = directory / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_text("\n".join(json.dumps(each) for each in actions))
    return deltalake.DeltaTable(directory)


@pytest.mark.parametrize(
    "given",
    [{}, {"protocol": featured("deletionVectors", "columnMapping", "v2Checkpoint")}],
    ids=["plain", "features that no file uses"],
)
def test_files_that_say_it_all(tmp_path: Path, given: dict[str, Any]) -> None:
    """A feature that is on and not made use of is no obstacle: a purged table can be read."""
    assert not_as_parquet(table(tmp_path, **given)) == ""


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"protocol": featured("deletionVectors"), "deletionVector": VECTOR}, "deletion vectors"),
        (
            {
                "protocol": featured("columnMapping"),
                "configuration": {"delta.columnMapping.mode": "name"},
            },
            "mapped to other names",
        ),
        ({"protocol": featured("typeWidening")}, "the reader feature typeWidening"),
        ({"path": "f3/part-0.parquet"}, "do not say their day"),
    ],
    ids=["deletion vectors", "column mapping", "another feature", "random path"],
)
def test_files_that_do_not(tmp_path: Path, given: dict[str, Any], what: str) -> None:
    """Rows that are deleted elsewhere, columns of other names, and what this does not look at."""
    assert what in not_as_parquet(table(tmp_path, **given))
