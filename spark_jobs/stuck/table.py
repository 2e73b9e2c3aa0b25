"""The table that a stream of half and op records keeps up to date, one row a transaction.

Each batch is merged with the table as it was and becomes a generation of its own,
`<table>/generation=<batch id>`; the newest that is complete is the table. A batch that is
repeated (its driver died before Spark noted it as done) makes the same generation of the same
predecessor once more, so a restart changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.stuck.state import STATE, kept, merged

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from halfbridge.spark_jobs.checkpoints import Checkpoint

GENERATIONS_KEPT = 2  # a reader may still be at work on the last but one
_NAME = re.compile(r"generation=(\d+)")
_SUCCESS = "_SUCCESS"  # Spark writes it when all of a directory's files are complete


@dataclass(frozen=True, slots=True)
class Table:
    """Where the table is.

    Attributes:
        spark: A session whose file systems know `path`.
        path: Directory or URI.
    """

    spark: SparkSession
    path: str

    def generations(self) -> list[int]:
        """Return the numbers of the complete generations, ascending."""
        jvm: Any = getattr(self.spark, "_jvm", None)
        if jvm is None:
            raise JobError("a Spark Connect client cannot keep this table: run it in the driver")
        here, files = self._files(self.path)
        if not files.exists(here):
            return []
        found = (_NAME.fullmatch(each.getPath().getName()) for each in files.listStatus(here))
        numbers = sorted(int(match[1]) for match in found if match)
        return [
            each for each in numbers if files.exists(self._path(f"{self._of(each)}/{_SUCCESS}"))
        ]

    def check(self, checkpoint: Checkpoint) -> None:
        """Make sure that the checkpoint is the one this table was made with.

        With another one the table would stay as it is, or lack all that was read before, and the
        report would not say a word of it.

        Raises:
            JobError: one of them was replaced or removed; the user must act.
        """
        newest = max(self.generations(), default=None)
        done = -1 if checkpoint.newest_commit is None else checkpoint.newest_commit
        behind = done >= 0 and (newest is None or newest < done)
        # The last batch may have been written and not noted as done.
        ahead = newest is not None and (checkpoint.is_new or newest > done + 1)
        if behind or ahead:
            has = "nothing" if newest is None else f"generation {newest}"
            raise JobError(
                f"the table {self.path} has {has}, and the checkpoint {checkpoint.path} has done"
                f" {done + 1} batches: one of the two was removed or replaced. Bring it back, or"
                " begin with a new --checkpoint and an empty --table."
            )

    def read(self, below: int | None = None) -> DataFrame:
        """Return the STATE of the newest generation, of those below `below` if that is given."""
        known = [each for each in self.generations() if below is None or each < below]
        schema = ", ".join(f"{name} {kind}" for name, kind in STATE.items())
        if not known:
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).parquet(self._of(known[-1])).select(*STATE)

    def write(self, state: DataFrame, generation: int) -> None:
        """Write STATE as a generation; forget those that nobody needs any more."""
        state.write.mode("overwrite").parquet(self._of(generation))
        for old in [each for each in self.generations() if each < generation][:-GENERATIONS_KEPT]:
            here, files = self._files(self._of(old))
            files.delete(here, True)  # noqa: FBT003  # Java has no names: its contents too

    def _of(self, generation: int) -> str:
        return f"{self.path.rstrip('/')}/generation={generation}"

    def _path(self, path: str) -> Any:
        jvm: Any = getattr(self.spark, "_jvm", None)
        return jvm.org.apache.hadoop.fs.Path(path)

    def _files(self, path: str) -> tuple[Any, Any]:
        here = self._path(path)
        session: Any = getattr(self.spark, "_jsparkSession", None)
        return here, here.getFileSystem(session.sessionState().newHadoopConf())


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
