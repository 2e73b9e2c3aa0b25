"""Delta tables through delta-rs: Spark's executors write the files, the driver commits them.

No row passes through Python, and no jar of Delta's is needed. A file that no transaction
lists is not part of the table, so files of a failed attempt do no harm; VACUUM removes them.

Tables in either format are read by Spark alone. The jobs read a table's files as Parquet and add
files to it; Delta's protocol has features with which that is not enough.
"""

from __future__ import annotations

import importlib.util
import json
import secrets
from typing import TYPE_CHECKING, Literal, TypedDict

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from halfbridge.extras import needs
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction, RemoveAction
    from pyspark.sql import DataFrame, SparkSession

_FILES = "files"  # below the table; each write has a directory of its own there
_DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class DeltaWriter:
    """Writes frames into one Delta table, each in one transaction, with equal partition columns.

    Raises:
        JobError: deltalake is not installed; the user installs it.
    """

    def __init__(self, spark: SparkSession, path: str, partition_by: Sequence[str]) -> None:
        if importlib.util.find_spec("deltalake") is None:
            raise JobError(needs("Delta", "deltalake"))
        self.path = path
        self._spark = spark
        self._partition_by = list(partition_by)
        self._storage = Storage(spark)

    def exists(self) -> bool:
        """Tell whether the table is there."""
        from deltalake import DeltaTable  # noqa: PLC0415  # an extra

        return DeltaTable.is_deltatable(self.path)

    def version_of(self, app_id: str) -> int | None:
        """Return the newest version that `app_id` committed; None: none, or no table."""
        from deltalake import DeltaTable  # noqa: PLC0415  # an extra

        return DeltaTable(self.path).transaction_version(app_id) if self.exists() else None

    def known_since_ms(self) -> int:
        """Return 0: the log keeps the newest version of each application."""
        return 0

    def append(self, rows: DataFrame, *, app_id: str, version: int) -> bool:
        """Add `rows` unless `app_id` has done so under this version; tell whether this call did.

        Rows and version are one transaction: a run that is killed in between repeats all of it, or
        finds it done. Of two runs that append one version at the same time one adds its rows; the
        other one's files are not part of the table.

        Raises:
            JobError: the table cannot accept them (another schema, a writer that changed it at the
                same moment); the user must act.
        """
        if has_version(self.version_of(app_id), version):
            return False
        schema, actions = self._written(rows)
        try:
            table = self._opened(schema)
            # Writing the files needed some time. From here on delta-rs protects: it refuses a
            # transaction if the table got another one of `app_id` since it was opened.
            if has_version(table.transaction_version(app_id), version):
                return False
            self._commit(table, actions, "append", schema, app=(app_id, version))
        except _delta_errors() as error:
            if has_version(self.version_of(app_id), version):
                return False
            raise JobError(f"Delta table {self.path}: {error}", paths=(self.path,)) from error
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
            self._commit(table, actions, "overwrite", schema, where=(column, list(values)))
        except _delta_errors() as error:
            raise JobError(f"Delta table {self.path}: {error}", paths=(self.path,)) from error

    def _written(self, rows: DataFrame) -> tuple[Schema, list[AddAction | RemoveAction]]:
        """Write the files; return their schema and the actions that make them part of the table."""
        from deltalake import Schema  # noqa: PLC0415  # an extra

        schema = Schema.from_json(rows.schema.json())
        # The name is new for every attempt, so that no attempt lists another one's files.
        files = join(_FILES, secrets.token_hex(8))
        rows.write.partitionBy(*self._partition_by).parquet(join(self.path, files))
        return schema, self._actions(files)

    def _opened(self, schema: Schema) -> DeltaTable:
        """Return the table as it is now, made if need be."""
        from deltalake import DeltaTable  # noqa: PLC0415  # an extra

        if not self.exists():
            try:
                DeltaTable.create(self.path, schema, mode="ignore", partition_by=self._partition_by)
            except _delta_errors():
                if not self.exists():  # else another run made it at the same moment
                    raise
        table = DeltaTable(self.path)
        if is_mapped(table):  # delta-rs would commit partition values under the wrong names
            raise JobError(
                f"Delta table {self.path} maps its columns to other names (column mapping), which"
                " this job cannot write: give another --output",
                paths=(self.path,),
            )
        self._check_schema(schema, table.schema())
        return table

    def _commit(
        self,
        table: DeltaTable,
        actions: list[AddAction | RemoveAction],
        mode: Literal["append", "overwrite"],
        schema: Schema,
        *,
        app: tuple[str, int] | None = None,
        where: tuple[str, list[str]] | None = None,
    ) -> None:
        from deltalake.transaction import CommitProperties, Transaction  # noqa: PLC0415  # an extra

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
                f"Delta table {self.path} has no column {other[0]!r} of type"
                f" {ours[other[0]]}: give another --output, or the schemas that it was made with",
                paths=(self.path,),
            )

    def _actions(self, files: str) -> list[AddAction | RemoveAction]:
        from deltalake.transaction import AddAction  # noqa: PLC0415  # an extra

        actions: list[AddAction | RemoveAction] = []
        for file in self._storage.files(join(self.path, files), ".parquet"):
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


def has_version(newest: int | None, version: int) -> bool:
    """Tell whether a table whose newest version of an application is this has that one."""
    return newest is not None and newest >= version


def _delta_errors() -> type[Exception]:
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  # an extra

    return DeltaError


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


DELTA_LOG = "_delta_log"
_NOTHING_THERE = "Unable to infer schema"
# Spark guesses the types of partition columns from their values, and knows no boolean.
_BOOLEANS = ("quarantined",)
_OTHERWISE = (
    "Start the job with Delta's own Spark source"
    " (docs/how-to/spark-in.md, Tables that other engines change)"
)
# Without it Delta's source does not apply deletion vectors.
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def is_delta(spark: SparkSession, path: str) -> bool:
    """Tell whether the directory is a Delta table."""
    return bool(Storage(spark).names(join(path, DELTA_LOG)))


def exists(spark: SparkSession, path: str) -> bool:
    """Tell whether the directory has files."""
    return bool(Storage(spark).names(path))


def read_table(spark: SparkSession, path: str) -> DataFrame | None:
    """Return all rows of a Parquet or Delta table, as it is now; None when it has no files yet.

    Only whole batches of Spark's file sink are read. A Delta table is read by Delta's
    own source where the session has it. Otherwise its log says which files, and these are read as
    Parquet: a table whose files alone do not say what its rows are is refused.

    Raises:
        JobError: it is a Delta table and deltalake is not installed, or one that Parquet's reader
            would read wrongly; the user must act.
        AnalysisException: there is no such directory; the user corrects the path.
    """
    if is_delta(spark, path):
        return _read_delta(spark, path)
    try:
        # Files of before and after a column was added.
        rows = spark.read.option("mergeSchema", "true").parquet(path)
    except AnalysisException as error:
        if _NOTHING_THERE in str(error):  # its condition is one of Spark's unnamed ones
            return None
        raise
    for name in _BOOLEANS:
        if name in rows.columns:
            rows = rows.withColumn(name, F.col(name).cast("boolean"))
    return rows


def _read_delta(spark: SparkSession, path: str) -> DataFrame | None:
    if _DELTA_EXTENSION in (spark.conf.get("spark.sql.extensions", None) or ""):
        return spark.read.format("delta").load(path)
    if importlib.util.find_spec("deltalake") is None:
        raise JobError(needs("Delta", "deltalake"))
    from deltalake import DeltaTable  # noqa: PLC0415  # an extra
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  (deltalake is optional)

    try:
        table = DeltaTable(path)
        what = not_as_parquet(table)
    except DeltaError as error:  # a feature that delta-rs does not know, say
        raise JobError(f"Delta table {path}: {error}. {_OTHERWISE}", paths=(path,)) from error
    if what:
        raise JobError(
            f"Delta table {path} has {what}, which its files alone do not tell. {_OTHERWISE}",
            paths=(path,),
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
# Features that may be on while the files are all that counts: those of the log and of VACUUM, a
# type that Parquet has too, and two that `not_as_parquet` examines.
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
