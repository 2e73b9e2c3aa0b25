"""Delta tables by their paths, through delta-rs: Spark writes and reads the files.

No row passes through Python, and no jar of Delta's is needed. A file that no transaction
lists is not part of the table, so files of a failed attempt do no harm; VACUUM removes them.
Delta's protocol has features with which files alone do not say what the rows are.

Importing this module raises JobError where deltalake is not installed; the user installs it.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Literal, TypedDict

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from halfbridge.extras import needs
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.tables.batches import BatchTable, has_version
from halfbridge.spark_jobs.tables.storage import Storage, join

try:
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
except ImportError as error:
    raise JobError(needs("Delta", "deltalake")) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

_FILES = "files"  # below the table; each write has a directory of its own there
_DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class DeltaWriter(BatchTable):
    """Writes frames into one Delta table, each in one transaction, with equal partition columns."""

    kind = "Delta"
    errors = (DeltaError,)

    def __init__(self, spark: SparkSession, path: str, partition_by: Sequence[str]) -> None:
        super().__init__(spark, path, partition_by)
        self._storage = Storage(spark)

    def version_of(self, app_id: str) -> int | None:
        """Return it as the table's log has it."""
        if not DeltaTable.is_deltatable(self.name):
            return None
        return DeltaTable(self.name).transaction_version(app_id)

    def _commit(self, rows: DataFrame, app_id: str, version: int) -> bool:
        schema, actions = self._written(rows)
        table = self._opened(schema)
        # Writing the files needed some time. From here on delta-rs protects: it refuses a
        # transaction if the table got another one of `app_id` since it was opened.
        if has_version(table.transaction_version(app_id), version):
            return False
        self._write(table, actions, "append", schema, app=(app_id, version))
        return True

    def replace(self, rows: DataFrame, column: str, values: Sequence[str]) -> None:
        """Put `rows` in the place of some partitions, in one transaction.

        All rows have one of `values`, in the form of the table's log, in the partition column
        `column`.

        Raises JobError: as `append`; the user must act.
        """
        schema, actions = self._written(rows)
        try:
            table = self._opened(schema)
            self._write(table, actions, "overwrite", schema, where=(column, list(values)))
        except DeltaError as error:
            raise JobError(f"Delta table {self.name}: {error}") from error

    def _written(self, rows: DataFrame) -> tuple[Schema, list[AddAction | RemoveAction]]:
        """Write the files; return their schema and the actions that make them part of the table."""
        schema = Schema.from_json(rows.schema.json())
        # The name is new for every attempt, so that no attempt lists another one's files.
        files = join(_FILES, secrets.token_hex(8))
        rows.write.partitionBy(*self._partition_by).parquet(join(self.name, files))
        return schema, self._actions(files)

    def _opened(self, schema: Schema) -> DeltaTable:
        """Return the table as it is now, made if need be."""
        if not DeltaTable.is_deltatable(self.name):
            try:
                DeltaTable.create(self.name, schema, mode="ignore", partition_by=self._partition_by)
            except DeltaError:
                # Unless another run made it at the same moment.
                if not DeltaTable.is_deltatable(self.name):
                    raise
        table = DeltaTable(self.name)
        if is_mapped(table):  # delta-rs would commit partition values under the wrong names
            raise JobError(
                f"Delta table {self.name} maps its columns to other names (column mapping), which"
                " this job cannot write: give another --output"
            )
        self._check_schema(schema, table.schema())
        return table

    def _write(
        self,
        table: DeltaTable,
        actions: list[AddAction | RemoveAction],
        mode: Literal["append", "overwrite"],
        schema: Schema,
        *,
        app: tuple[str, int] | None = None,
        where: tuple[str, list[str]] | None = None,
    ) -> None:
        table.create_write_transaction(
            actions,
            mode,
            schema,
            partition_by=self._partition_by,
            partition_filters=[(where[0], "in", where[1])] if where else None,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(*app)] if app else None
            ),
        )

    def _check_schema(self, given: Schema, present: Schema) -> None:
        """Refuse rows of other columns: delta-rs does not verify the content of files."""
        ours, theirs = (_fields(json.loads(each.to_json())) for each in (given, present))
        if other := sorted(name for name in ours if theirs.get(name) != ours[name]):
            raise JobError(
                f"Delta table {self.name} has no column {other[0]!r} of type"
                f" {ours[other[0]]}: give another --output, or the schemas that it was made with"
            )

    def _actions(self, files: str) -> list[AddAction | RemoveAction]:
        actions: list[AddAction | RemoveAction] = []
        for file in self._storage.files(join(self.name, files), ".parquet"):
            row_count = self._storage.parquet_rows(file)
            if row_count == 0:
                continue
            actions.append(
                AddAction(
                    path=join(files, file.path),
                    size=file.size_bytes,
                    partition_values=_partition_values(file.path),
                    modification_time=file.modified_ms,
                    data_change=True,
                    stats=json.dumps({"numRecords": row_count}),
                )
            )
        return actions


class _FieldJson(TypedDict):
    name: str
    type: object  # a name, or the JSON of a type with parts


class _SchemaJson(TypedDict):
    fields: list[_FieldJson]


def _fields(schema: _SchemaJson) -> dict[str, str]:
    """Return the columns with their types; whether nulls are allowed does not matter here."""
    return {
        field["name"]: json.dumps(_nullable(field["type"]), sort_keys=True)
        for field in schema["fields"]
    }


def _nullable(kind: object) -> object:
    if isinstance(kind, dict):
        loose = {"nullable": True, "containsNull": True, "valueContainsNull": True}
        return {
            name: loose.get(name, _nullable(value))
            for name, value in kind.items()
            if name != "metadata"
        }
    return [_nullable(each) for each in kind] if isinstance(kind, list) else kind


def _partition_values(path: str) -> dict[str, str | None]:
    """Return the partition values in a file's path; ours need no escaping."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {name: None if value == _DEFAULT_PARTITION else value for name, _, value in pairs}


_OTHERWISE = (
    "Start the job with Delta's own Spark source"
    " (docs/how-to/spark-in.md, Tables that other engines change)"
)


def read(spark: SparkSession, path: str) -> DataFrame | None:
    """Return all rows of a Delta table; None when it has no files.

    Its log says which files, and these are read as Parquet.

    Raises:
        JobError: Parquet's reader would read it wrongly; the user must act.
    """
    try:
        table = DeltaTable(path)
        what = not_as_parquet(table)
    except DeltaError as error:  # a feature that delta-rs does not know, say
        raise JobError(f"Delta table {path}: {error}. {_OTHERWISE}") from error
    if what:
        raise JobError(
            f"Delta table {path} has {what}, which its files alone do not tell. {_OTHERWISE}"
        )
    files = table.file_uris()
    if not files:
        return None
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    partition_by = table.metadata().partition_columns
    inside = StructType([field for field in schema if field.name not in partition_by])
    rows = spark.read.schema(inside).parquet(*files)
    for name in partition_by:
        value = F.regexp_extract(F.col("_metadata.file_path"), f"/{name}=([^/]+)/", 1)
        rows = rows.withColumn(name, value.cast(schema[name].dataType))
    return rows.select(*schema.names)


# Delta's protocol, Reader Requirements. 2: column mapping. 3: a list of the features that are
# needed.
_READER_VERSION_MAX = 3
_MAPPING = "delta.columnMapping.mode"
_VECTORS = "deletionVectors"
# Features of a table whose rows can be read from its files alone: features of the log and of
# VACUUM, a type that Parquet has too, and two that `not_as_parquet` examines.
_HARMLESS_FEATURES = frozenset(
    ("columnMapping", _VECTORS, "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck")
)


def not_as_parquet(table: DeltaTable) -> str:
    """Return why reading a Delta table's files as Parquet would be wrong; empty: it is not.

    Another engine may have written it. What this version does not know counts as something.
    """
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version > _READER_VERSION_MAX:
        return f"reader version {protocol.min_reader_version}"
    if unknown := sorted(features - _HARMLESS_FEATURES):
        return f"the reader feature {unknown[0]}"
    metadata = table.metadata()
    if is_mapped(table):
        return "columns that are mapped to other names"
    if _VECTORS in features and any(batch.num_rows for batch in table.deletion_vectors()):
        return "rows that are deleted by deletion vectors"
    for uri in table.file_uris():
        if missing := [each for each in metadata.partition_columns if f"/{each}=" not in uri]:
            return f"files whose paths do not say their {missing[0]}"
    return ""


def is_mapped(table: DeltaTable) -> bool:
    """Tell whether columns have other names in files and log: then no file of ours can be added."""
    return table.metadata().configuration.get(_MAPPING, "none") != "none"
