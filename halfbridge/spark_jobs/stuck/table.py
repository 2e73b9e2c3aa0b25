"""The table that a stream of half and op records keeps up to date, one row a transaction.

Each batch is merged with the table as it was and becomes a generation of its own,
`<table>/generation=<batch id>`; the newest that is complete is the table. A batch that is
repeated (its driver died before Spark noted it as done) makes the same generation of the same
predecessor once more, so a restart changes nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfbridge.spark_jobs.jobs.errors import JobError
from halfbridge.spark_jobs.stuck.state import STATE, kept, merged
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from halfbridge.spark_jobs.tables.checkpoints import Checkpoint

GENERATIONS_KEPT = 2  # a reader may still be at work on the last but one
_NAME = re.compile(r"generation=(\d+)")
_SUCCESS = "_SUCCESS"  # Spark writes it when all of a directory's files are complete


class Table:
    """The generations of the table.

    Args:
        spark: A session whose file systems know `path`.
        path: Directory or URI.

    Raises:
        JobError: the session is of a Spark Connect client; the user must act.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._spark = spark
        self._storage = Storage(spark)

    def generations(self) -> list[int]:
        """Return the numbers of the complete generations, ascending."""
        found = (_NAME.fullmatch(name) for name in self._storage.names(self.path))
        numbers = sorted(int(match[1]) for match in found if match)
        return [each for each in numbers if self._storage.exists(join(self._of(each), _SUCCESS))]

    def check(self, checkpoint: Checkpoint) -> None:
        """Make sure that the checkpoint is the one this table was made with.

        With another one the table would stay as it is, or lack all that was read before, and the
        report would not say a word of it.

        Raises:
            JobError: one of them was replaced or removed; the user must act.
        """
        newest = max(self.generations(), default=None)
        written, done = -1 if newest is None else newest, checkpoint.batches_done
        behind = written < done - 1
        # The last batch may have been written and not noted as done.
        ahead = newest is not None and (checkpoint.is_new or written > done)
        if behind or ahead:
            has = "nothing" if newest is None else f"generation {newest}"
            raise JobError(
                f"the table {self.path} has {has}, and the checkpoint {checkpoint.path} has done"
                f" {done} batches: one of the two was removed or replaced. Bring it back, or"
                " begin with a new --checkpoint and an empty --table."
            )

    def read(self, below: int | None = None) -> DataFrame:
        """Return the STATE of the newest generation, of those below `below` if that is given."""
        known = [each for each in self.generations() if below is None or each < below]
        schema = ", ".join(f"{name} {kind}" for name, kind in STATE.items())
        if not known:
            return self._spark.createDataFrame([], schema)
        return self._spark.read.schema(schema).parquet(self._of(known[-1])).select(*STATE)

    def write(self, state: DataFrame, generation: int) -> None:
        """Write STATE as a generation; forget those that nobody needs any more."""
        state.write.mode("overwrite").parquet(self._of(generation))
        for old in [each for each in self.generations() if each < generation][:-GENERATIONS_KEPT]:
            self._storage.remove_tree(self._of(old))

    def _of(self, generation: int) -> str:
        return join(self.path, f"generation={generation}")


def keep_up(table: Table, *, keep_ms: int) -> Callable[[DataFrame, int], None]:
    """Return what `foreachBatch` has to do with rows of STATE.

    Args:
        table: Is kept up to date.
        keep_ms: As in `state.kept`.
    """

    def merge(batch: DataFrame, batch_id: int) -> None:
        # Persisted, for it is looked at twice, and the batch must be read from Kafka once.
        state = merged(table.read(below=batch_id), batch).persist()
        try:
            table.write(kept(state, keep_ms=keep_ms), batch_id)
        finally:
            state.unpersist()

    return merge
