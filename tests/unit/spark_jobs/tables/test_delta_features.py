"""Which Delta tables may be read as Parquet; logs as the protocol has them, and no JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from halfbridge.spark_jobs.tables.delta import not_as_parquet

deltalake = pytest.importorskip("deltalake")

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
    [
        {},
        {"protocol": featured("deletionVectors", "columnMapping", "v2Checkpoint")},
    ],
    ids=["plain", "features that no file uses"],
)
def test_files_that_say_it_all(tmp_path: Path, given: dict[str, Any]) -> None:
    """A feature that is on and not made use of is no obstacle: a purged table can be read."""
    assert not_as_parquet(table(tmp_path, **given)) == ""


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (
            {"protocol": featured("deletionVectors"), "deletionVector": VECTOR},
            "deletion vectors",
        ),
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
