"""Delta tables through delta-rs: Spark's executors write the files, the driver commits them.

No row passes through Python, and no jar of Delta's is needed. What a transaction does not list is
not part of the table, so files of a failed attempt do no harm; VACUUM removes them.
"""

from __future__ import annotations

import importlib.util
import json
import secrets
from typing import TYPE_CHECKING, Any

from halfbridge.spark_jobs.jobs.errors import JobError
from halfbridge.spark_jobs.tables.delta_features import is_mapped
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

_FILES = "files"  # below the table; each write has a directory of its own there
_DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class DeltaWriter:
    """Writes frames into one Delta table, each in one transaction.

    Args:
        spark: The session that writes the files.
        path: The table's directory or URI.
        partition_by: Its partition columns; the same for every write.

    Raises:
        JobError: the package deltalake is not installed; the user must act.
    """

    def __init__(self, spark: SparkSession, path: str, partition_by: Sequence[str]) -> None:
        if importlib.util.find_spec("deltalake") is None:
            raise JobError("Delta needs the package deltalake: pip install 'halfbridge[delta]'")
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

    def append(self, rows: DataFrame, *, app_id: str, version: int) -> bool:
        """Add `rows` to the table unless `app_id` has done so under this version already.

        Rows and version are one transaction: whoever is killed in between does it all again, or
        finds it done. Of two runs that append one version at the same time one adds its rows; the
        other one's files are not part of the table.

        Returns:
            Whether this call added them. False: the table has this version, and nothing was added.

        Raises:
            JobError: the table cannot take them (another schema, a writer that changed it at the
                same moment); the user must act.
        """
        if _has(self.version_of(app_id), version):
            return False
        schema, actions = self._written(rows)
        try:
            table = self._opened(schema)
            # Writing the files took a while. From here on delta-rs tells: it refuses a
            # transaction if the table got another one of `app_id` since it was opened.
            if _has(table.transaction_version(app_id), version):
                return False
            self._commit(table, actions, "append", schema, app=(app_id, version))
        except _delta_errors() as error:
            if _has(self.version_of(app_id), version):
                return False
            raise JobError(f"Delta table {self.path}: {error}") from error
        return True

    def replace(self, rows: DataFrame, column: str, values: Sequence[str]) -> None:
        """Put `rows` in the place of some partitions, in one transaction.

        Args:
            rows: All of them have one of these values in this column.
            column: A partition column.
            values: As they stand in the table's log.

        Raises:
            JobError: as `append`.
        """
        schema, actions = self._written(rows)
        try:
            table = self._opened(schema)
            self._commit(table, actions, "overwrite", schema, where=(column, list(values)))
        except _delta_errors() as error:
            raise JobError(f"Delta table {self.path}: {error}") from error

    def _written(self, rows: DataFrame) -> tuple[Any, list[Any]]:
        """Write the files; return their schema and the actions that make them part of the table."""
        from deltalake import Schema  # noqa: PLC0415  # an extra

        schema = Schema.from_json(rows.schema.json())
        # The name is new for every attempt, so that nobody lists another attempt's files.
        files = join(_FILES, secrets.token_hex(8))
        rows.write.partitionBy(*self._partition_by).parquet(join(self.path, files))
        return schema, self._actions(files)

    def _opened(self, schema: Any) -> Any:
        """Return the table as it is now, made if need be.

        Raises:
            JobError: it has other columns, or its columns have other names in its files; the user
            must act.
        """
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
                " this job cannot write: give another --output"
            )
        self._check_schema(schema, table.schema())
        return table

    def _commit(
        self,
        table: Any,
        actions: list[Any],
        mode: str,
        schema: Any,
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

    def _check_schema(self, given: Any, present: Any) -> None:
        """Refuse rows of other columns: delta-rs takes the driver's word for what files hold."""
        ours, theirs = (_fields(json.loads(each.to_json())) for each in (given, present))
        if other := sorted(name for name in ours if theirs.get(name) != ours[name]):
            raise JobError(
                f"Delta table {self.path} has no column {other[0]!r} of type"
                f" {ours[other[0]]}: give another --output, or the schemas that it was made with"
            )

    def _actions(self, files: str) -> list[Any]:
        from deltalake.transaction import AddAction  # noqa: PLC0415  # an extra

        actions = []
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


def _has(newest: int | None, version: int) -> bool:
    """Tell whether a table whose newest version of an application is this has that one."""
    return newest is not None and newest >= version


def _delta_errors() -> type[Exception]:
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  # an extra

    return DeltaError


def _fields(schema: Any) -> dict[str, str]:
    """Return the columns with their types; whether nulls are allowed does not matter here."""
    return {
        field["name"]: json.dumps(_nullable(field["type"]), sort_keys=True)
        for field in schema["fields"]
    }


def _nullable(kind: Any) -> Any:
    if isinstance(kind, dict):
        loose = {"nullable": True, "containsNull": True, "valueContainsNull": True}
        return {
            name: loose.get(name, _nullable(value))
            for name, value in kind.items()
            if name != "metadata"
        }
    return [_nullable(each) for each in kind] if isinstance(kind, list) else kind


def _partition_values(path: str) -> dict[str, str | None]:
    """Return what a file's directories say; our partition values need no escaping."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {name: None if value == _DEFAULT_PARTITION else value for name, _, value in pairs}
