"""Tables of a catalog, by name, through Iceberg's and Delta's own writers for Spark.

Both formats keep in the commit itself which batch it is, and refuse a second commit of that batch.

Iceberg: a batch is staged as a snapshot whose property `wap.id` names job and batch, then published
("write-audit-publish"). Whenever Iceberg tries to commit the publication it looks for that property
in the table's history as it is then, so one of two runs with the same batch publishes. A staged
snapshot that nobody publishes is not part of the table; `expire_snapshots` removes it.

Delta: `txnAppId` and `txnVersion`, which its log keeps.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from halfbridge.spark_jobs.capabilities import java_class
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.tables.batches import BatchTable
from halfbridge.spark_jobs.tables.storage import jvm_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from py4j.java_gateway import JavaClass, JavaObject
    from pyspark.sql import DataFrame, SparkSession


_UTIL = "org.apache.iceberg.spark.Spark3Util"
_ANCESTORS = "org.apache.iceberg.util.SnapshotUtil"
# Iceberg's names: of the property of a staged snapshot, which a fast-forward publishes as it is,
# and of a snapshot that publishes a staged one after another writer's commit.
_STAGED, _PUBLISHED = "wap.id", "published-wap-id"
_SESSION_ID = "spark.wap.id"
_ATTEMPT = "halfbridge.attempt"
_PROPERTIES: Mapping[str, str] = {
    "write.wap.enabled": "true",
    # Without it Spark refuses new columns before Iceberg could add them.
    "write.spark.accept-any-schema": "true",
}
# The default sends all rows of a day to one task. A batch has few days: a task has a file for each.
_NEW_PROPERTIES: Mapping[str, str] = {**_PROPERTIES, "write.distribution-mode": "none"}


class IcebergTable(BatchTable):
    """An Iceberg table of any catalog that the session has.

    Columns that the rows have and the table has not are added.

    Raises:
        JobError: the session has no Iceberg; the user names a catalog of it.
    """

    kind = "Iceberg"

    def __init__(self, spark: SparkSession, name: str, partition_by: Sequence[str]) -> None:
        super().__init__(spark, name, partition_by)
        # Whether this run has added columns: each look is a commit of the table.
        self._merged = False
        self._util = _required(spark, _UTIL, "Iceberg")
        self._history = java_class(jvm_of(spark), _ANCESTORS)

    def version_of(self, app_id: str) -> int | None:
        """Return it as the snapshots that are left have it."""
        for snapshot in self._ancestors():
            properties = snapshot.summary()
            given = properties.get(_STAGED) or properties.get(_PUBLISHED) or ""
            app, _, version = given.rpartition("#")
            if app == app_id and version.isdigit():
                return int(version)
        return None

    def known_since_ms(self) -> int:
        """Return the time of the oldest snapshot that was not expired; 0: none was expired."""
        oldest = None
        for snapshot in self._ancestors():
            oldest = snapshot
        # An expiry by pyiceberg removes the parent's id, too: then the number of the commit tells.
        if oldest is None or (oldest.parentId() is None and oldest.sequenceNumber() <= 1):
            return 0
        return int(oldest.timestampMillis())

    def _commit(self, rows: DataFrame, app_id: str, version: int) -> bool:
        self._prepare(rows)
        staged = self._stage(rows, f"{app_id}#{version}")
        self._loaded().manageSnapshots().cherrypick(staged).commit()
        return True

    def _prepare(self, rows: DataFrame) -> None:
        """Make the table if it does not exist, and set the properties that the writer needs."""
        if not self._spark.catalog.tableExists(self.name):
            _create(rows, self.name, "iceberg", self._partition_by, properties=_NEW_PROPERTIES)
        present = self._loaded().properties()
        if any(present.get(name) != value for name, value in _PROPERTIES.items()):
            self._spark.sql(
                f"ALTER TABLE {self.name} SET TBLPROPERTIES ({_properties(_PROPERTIES)})"
            )

    def _stage(self, rows: DataFrame, wap_id: str) -> int:
        """Write a snapshot that is not part of the table yet, and return its id."""
        attempt = secrets.token_hex(8)  # a run that was killed may have staged this batch, too
        options = rows.sparkSession.conf
        options.set(_SESSION_ID, wap_id)
        try:
            (
                rows.writeTo(self.name)
                .option(f"snapshot-property.{_STAGED}", wap_id)
                .option(f"snapshot-property.{_ATTEMPT}", attempt)
                .option("mergeSchema", str(not self._merged).lower())
                .option("check-ordering", "false")
                .append()
            )
        finally:
            options.unset(_SESSION_ID)
        self._merged = True
        for snapshot in reversed(self._loaded().snapshots()):
            if snapshot.summary().get(_ATTEMPT) == attempt:
                found: int = snapshot.snapshotId()
                return found
        raise JobError(
            f"Iceberg table {self.name}: somebody removed a snapshot that was written just now"
        )

    def _ancestors(self) -> Iterator[JavaObject]:
        """Yield the current snapshot and those that led to it, as far as they are kept."""
        if not self._spark.catalog.tableExists(self.name):
            return
        ancestors = self._history.currentAncestors(self._loaded()).iterator()
        while ancestors.hasNext():
            yield ancestors.next()

    def _loaded(self) -> JavaObject:
        """Return the table as it is now."""
        table = self._util.loadIcebergTable(self._spark._jsparkSession, self.name)  # noqa: SLF001  # the only way to Iceberg's API
        table.refresh()
        return table


_LOG = "org.apache.spark.sql.delta.DeltaLog"
_NO_TABLE = "DELTA_MISSING_DELTA_TABLE"


class DeltaCatalogTable(BatchTable):
    """A Delta table of the session's catalog, through delta-spark.

    Raises:
        JobError: the session has no Delta; the user names its catalog.
    """

    kind = "Delta"

    def __init__(self, spark: SparkSession, name: str, partition_by: Sequence[str]) -> None:
        super().__init__(spark, name, partition_by)
        self._log = _required(spark, _LOG, "Delta")

    def version_of(self, app_id: str) -> int | None:
        """Return it as Delta's log has it."""
        location = self._location()
        if location is None:
            return None
        session = self._spark._jsparkSession  # noqa: SLF001  # the only way to Delta's log
        pair = self._log.forTableWithSnapshot(session, location)
        found = pair.productElement(1).transactions().get(app_id)
        return int(found.get()) if found.isDefined() else None

    def _commit(self, rows: DataFrame, app_id: str, version: int) -> bool:
        if self._location() is None:
            _create(rows, self.name, "delta", self._partition_by, properties={})
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", app_id)
            .option("txnVersion", version)
            .option("mergeSchema", "true")
            .saveAsTable(self.name)
        )
        return True

    def _location(self) -> str | None:
        """Return where the table is; None: it is not there yet."""
        try:
            if not self._spark.catalog.tableExists(self.name):
                return None
            (detail,) = self._spark.sql(f"DESCRIBE DETAIL {self.name}").collect()
        except AnalysisException as error:
            if _NO_TABLE in str(error):  # of a name such as delta.`/path`
                return None
            raise
        location: str = detail["location"]
        return location


def _required(spark: SparkSession, name: str, what: str) -> JavaClass:
    try:
        return java_class(jvm_of(spark), name)
    except JobError as error:
        raise JobError(
            f"this session has no {what}: name a catalog of its own, and under spark-submit its jar"
            " (docs/how-to/spark-in.md, Tables of a catalog)"
        ) from error


def _create(
    rows: DataFrame,
    name: str,
    kind: str,
    partition_by: Sequence[str],
    *,
    properties: Mapping[str, str],
) -> None:
    columns = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in rows.schema)
    text = f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING {kind}"
    text += f" PARTITIONED BY ({', '.join(partition_by)})"
    if properties:
        text += f" TBLPROPERTIES ({_properties(properties)})"
    rows.sparkSession.sql(text)


def _properties(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
