"""The directory in which an incremental audit keeps what its runs have read and found.

    STATE/manifest.json                the last run's snapshot and counts, the generations in force
    STATE/<table>/generation=<time>/   the rows that the run of that time has added, as Parquet

A run writes its generation first, and replaces the manifest last. If it is killed before, the
former state is in force, and a run of the next day removes what the killed one has left.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from halfbridge.serde.units import DAY_MS
from halfbridge.spark_jobs.audit.carried import ADDED, REPLACED, Carried, left_by
from halfbridge.spark_jobs.audit.computing import computed, counted, for_few
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.reading.offsets import read_snapshot
from halfbridge.spark_jobs.reading.take_snapshot import now_ms
from halfbridge.spark_jobs.tables.checkpoints import check_same
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from halfbridge.spark_jobs.audit.run import Audit
    from halfbridge.spark_jobs.reading.offsets import Snapshot

_VERSION = 1  # of the tables' columns and of the manifest; another form gets another number
# A killed run has left each generation that no manifest names, or a run writes it now. No run takes
# this long, so older ones are removed.
LEFT_MS = DAY_MS
_PREFIX = "generation="  # of a directory's name; Spark reads it as a column
# Transaction ids in the half topics of other installations.
_OTHERS = "others"
_TABLES = {**ADDED, **REPLACED, _OTHERS: {"transaction_id": "string"}}


class State:
    """The state of one installation's audits, for one run.

    Attributes:
        snapshot: What was read; None: the state is new.
    """

    def __init__(self, spark: SparkSession, path: str, identity: Mapping[str, object]) -> None:
        """Read the manifest.

        Raises JobError: the state is another installation's, or damaged; the user follows the text.
        """
        self._spark = spark
        self._path = path
        self._manifest = join(path, "manifest.json")
        self._identity = {"version": _VERSION, **identity}
        self._storage = Storage(spark)
        self._text = self._storage.read(self._manifest)
        self._generations: list[int] = []
        self._counts: dict[str, dict[str, int]] = {}
        self.snapshot: Snapshot | None = None
        if self._text is not None:
            self._read(self._text)
        self._generation = max([now_ms(), *(each + 1 for each in self._generations)])

    def carried(self) -> Carried | None:
        """Return what earlier runs have left; None: there was none.

        Raises JobError: files of the state are missing; the user follows the text.
        """
        if self.snapshot is None:
            return None
        tables = {name: self._table(name) for name in (*ADDED, *REPLACED)}
        last = tables["revived"].groupBy("transaction_id").agg(F.max("generation"))
        tables["revived"] = computed(last.toDF("transaction_id", "generation"))
        return Carried(self._counts["records"], self._counts["states"], **tables)

    def add_others(self, ids: DataFrame) -> DataFrame:
        """Write the transaction ids that this run has read in other installations' half topics.

        Returns the ids that this run and earlier ones have written.
        """
        self._write(_OTHERS, ids)
        return self._table(_OTHERS, self._generation).select("transaction_id")

    def write(self, audit: Audit) -> None:
        """Write what this run has left (`carried.left_by`), then the manifest.

        Raises JobError: another run has written the state; the user runs one at a time.
        """
        with for_few(self._spark, audit.judged.count):
            for name, rows in left_by(audit.judged, audit.bounds).items():
                self._write(name, rows)
            added = self._spark.read.parquet(self._place("settled", self._generation))
            counts: Counter[str | None] = counted(added, "state")
        revived = audit.judged.revived
        states = Counter(revived.still_settled if revived else ())
        states.update({state: count for state, count in counts.items() if state})
        manifest = {
            "identity": self._identity,
            "generations": [*self._generations, self._generation],
            "snapshot": audit.bounds.snapshot.as_json(),
            "counts": {"records": audit.records, "states": states},
        }
        if self._storage.read(self._manifest) != self._text:
            raise JobError(
                f"{self._manifest} was written by another run a moment ago: run one at a time"
            )
        self._storage.replace(self._manifest, json.dumps(manifest) + "\n")

    def _read(self, text: str) -> None:
        try:
            found = json.loads(text)
            given = {"remedy": "give a new --state", "what": "state"}
            check_same(self._path, found["identity"], self._identity, **given)
            self.snapshot = read_snapshot(json.dumps(found["snapshot"]))
            self._generations, self._counts = found["generations"], found["counts"]
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(
                f"{self._manifest} is damaged: {error}. Restore it, or begin with a new --state."
            ) from error

    def _write(self, name: str, rows: DataFrame) -> None:
        """Write the rows that this run adds to a table, once what nobody reads is removed."""
        replaced = self._generations[:-1] if name in REPLACED else []
        for each in self._written(name):
            is_left = each not in self._generations and each < self._generation - LEFT_MS
            if each in replaced or is_left:
                self._storage.remove_tree(self._place(name, each))
        rows.write.parquet(self._place(name, self._generation))

    def _table(self, name: str, *more: int) -> DataFrame:
        """Return the rows in force of a table. Raises JobError as `carried` does."""
        known = self._generations[-1:] if name in REPLACED else [*self._generations, *more]
        written = self._written(name)
        there = [each for each in known if each in written]
        if there != known and name != _OTHERS:  # a run writes those only where it needs them
            raise JobError(
                f"{self._path} is damaged: {name} lacks generations that {self._manifest} names."
                " Restore them, or begin with a new --state."
            )
        columns = {**_TABLES[name], "generation": "long"}
        schema = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        if not there:
            return self._spark.createDataFrame([], schema)
        reader = self._spark.read.schema(schema).option("basePath", join(self._path, name))
        rows = reader.parquet(*(self._place(name, each) for each in there))
        return rows.drop("generation") if name in REPLACED else rows

    def _written(self, name: str) -> set[int]:
        """Return the generations of a table, also those that no manifest names."""
        names = self._storage.names(join(self._path, name))
        return {int(each.removeprefix(_PREFIX)) for each in names if each.startswith(_PREFIX)}

    def _place(self, name: str, generation: int) -> str:
        return join(self._path, name, f"{_PREFIX}{generation}")
