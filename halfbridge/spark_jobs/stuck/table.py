"""The table that a stream of half and op records keeps up to date, one row a transaction.

Each batch is merged with the table as it was and becomes a generation of its own,
`<table>/generation=<batch id>`; the newest that is complete is the table. A batch that is
repeated (its driver died before Spark noted it as done) makes the same generation of the same
predecessor once more, so a restart changes nothing.

STATE has the known facts about a transaction's decision. Every column is a minimum or a maximum. So
a state is the same whether it was made of all records at once or of one batch after the other, and
a batch that is merged twice changes nothing.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from halfbridge.spark_jobs.audit.facts import (
    append_ms,
    born_ms,
    decoded_halves,
    decoded_ops,
    first_append_ms,
)
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.reading.decisions import (
    claimed_age_ms,
    decides,
    is_born_by,
    proven_birth_ms,
)
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, SparkSession

    from halfbridge.spark_jobs.reading.decisions import SignatureJudge
    from halfbridge.spark_jobs.tables.checkpoints import Checkpoint

GENERATIONS_KEPT = 2  # a reader may still be at work on the last but one
_NAME = re.compile(r"generation=(\d+)")
_SUCCESS = "_SUCCESS"  # Spark writes it when all of a directory's files are complete


class Table:
    """The generations of the table, in a directory or below a URI."""

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
        report would not show it.

        Raises JobError: it is another one; the user follows the text.
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
                " begin with a new --checkpoint and an empty --table.",
                paths=(self.path, checkpoint.path),
            )

    def read(self, below: int | None = None) -> DataFrame:
        """Return the STATE of the newest generation, of those below `below` if that is given."""
        known = [each for each in self.generations() if below is None or each < below]
        schema = ", ".join(f"{name} {kind}" for name, kind in STATE.items())
        if not known:
            return self._spark.createDataFrame([], schema)
        return self._spark.read.schema(schema).parquet(self._of(known[-1])).select(*STATE)

    def write(self, state: DataFrame, generation: int) -> None:
        """Write STATE as a generation; remove generations that are not needed any more."""
        state.write.mode("overwrite").parquet(self._of(generation))
        for old in [each for each in self.generations() if each < generation][:-GENERATIONS_KEPT]:
            self._storage.remove_tree(self._of(old))

    def _of(self, generation: int) -> str:
        return join(self.path, f"generation={generation}")


def keep_up(table: Table, *, keep_ms: int) -> Callable[[DataFrame, int], None]:
    """Return what `foreachBatch` has to do with rows of STATE; `keep_ms` is that of `kept`."""

    def merge(batch: DataFrame, batch_id: int) -> None:
        # Persisted, because it is used twice, and the batch must be read from Kafka once.
        state = merged(table.read(below=batch_id), batch).persist()
        try:
            table.write(kept(state, keep_ms=keep_ms), batch_id)
        finally:
            state.unpersist()

    return merge


LIFE = ("transaction_id", "resume_count", "producer_group", "pair")
# Contract of `state_of_halves`, `state_of_ops` and `merged`; null: not known.
STATE = {
    "transaction_id": "string",
    "resume_count": "int",
    "producer_group": "string",
    "pair": "int",  # half and op partition
    # Time of its first half message, to be shown; of a record without an append time its writer's.
    "first_ms": "long",
    "original_at": "long",  # lowest offset of an original
    "original_ms": "long",  # append time of that original, or NO_APPEND_MS
    "copied_ms": "long",  # lowest first append time that a copy carries
    "half_offset": "long",  # lowest one that is left
    "message_index": "int",  # index of the message that real_topic is from: the first
    "real_topic": "string",
    "index_last": "int",
    "checks": "int",  # answered checks that counted
    "op_offset": "long",  # lowest decision
    "aged_ms": "long",  # highest birth of which a discard for age proves the age it claims
    "last_ms": "long",  # newest time of any of its records
}


def state_of_halves(
    records: DataFrame, judge: SignatureJudge | None = None, *, more: Sequence[str] = ()
) -> DataFrame:
    """Return the STATE of each row of the half topic; arguments as of `decoded_halves`.

    `more` are columns of the rows to be kept behind STATE.
    """
    read = decoded_halves(records, judge).where(F.col("unread").isNull())
    meta, ms = F.col("meta"), F.unix_millis("timestamp")
    is_copy = meta["origin_offset"] >= 0
    claimed_ms = meta["first_append_timestamp"]
    return _state(
        read,
        meta,
        first_ms=F.when(is_copy & (claimed_ms >= 0), F.least(claimed_ms, ms)).otherwise(ms),
        original_at=F.when(~is_copy, F.col("offset")),
        original_ms=F.when(~is_copy, append_ms()),
        copied_ms=F.when(is_copy, first_append_ms(meta)),
        half_offset=F.col("offset"),
        message_index=meta["message_index"],
        real_topic=meta["real_topic"],
        index_last=meta["message_index"],
        # An original that claims to have been checked is forged or broken: it was not.
        checks=F.when(is_copy, meta["check_times"]).otherwise(0),
        more=more,
    )


def state_of_ops(records: DataFrame, judge: SignatureJudge | None = None) -> DataFrame:
    """Return the STATE of each row of the op topic; arguments as of `decoded_ops`."""
    read = decoded_ops(records, judge).where(F.col("unread").isNull())
    op = F.col("op")
    age_ms = claimed_age_ms(op["kind"], op["source"], op["age_ms"])
    is_decision = decides(op["kind"], op["source"])
    return _state(
        read,
        op,
        op_offset=F.when(is_decision & (age_ms == 0), F.col("offset")),
        aged_ms=F.when(age_ms > 0, proven_birth_ms(age_ms, append_ms())),
    )


def merged(*states: DataFrame) -> DataFrame:
    """Return one row a transaction of frames that have the columns STATE."""
    original = F.struct("original_at", "original_ms")
    rows = (
        reduce(DataFrame.unionAll, states)
        .groupBy(*LIFE)
        .agg(
            F.min("first_ms").alias("first_ms"),
            F.min(F.when(F.col("original_at").isNotNull(), original)).alias("original"),
            F.min("copied_ms").alias("copied_ms"),
            F.min("half_offset").alias("half_offset"),
            F.min("message_index").alias("message_index"),
            F.min_by("real_topic", "message_index").alias("real_topic"),
            F.max("index_last").alias("index_last"),
            F.max("checks").alias("checks"),
            F.min("op_offset").alias("op_offset"),
            F.max("aged_ms").alias("aged_ms"),
            F.max("last_ms").alias("last_ms"),
        )
    )
    return rows.select("*", "original.*").select(*STATE)


def is_decided() -> Column:
    """Tell whether the transaction of a merged STATE is decided."""
    born = born_ms(F.col("original_ms"), F.col("copied_ms"))
    return F.col("op_offset").isNotNull() | is_born_by(born, F.col("aged_ms"))


def undecided(state: DataFrame) -> DataFrame:
    """Return the transactions of a merged STATE that have half messages and no decision."""
    return state.where(F.col("first_ms").isNotNull() & ~is_decided()).select(*STATE)


def kept(state: DataFrame, *, keep_ms: int) -> DataFrame:
    """Return a merged STATE without transactions that were decided long ago.

    A half message that is read after its decision, as a copy that was put back just before it, or
    because the op topic is read ahead, would be undecided for ever once the decision was
    forgotten. So decisions are kept for `keep_ms` behind the half messages read so far of their
    own pair, measured in append times.
    """
    appended_ms = F.greatest("original_ms", "copied_ms")
    newest = state.groupBy("pair").agg(F.max(appended_ms).alias("newest_ms"))
    is_old = F.coalesce(F.col("last_ms") < F.col("newest_ms") - keep_ms, F.lit(col=False))
    known = state.join(F.broadcast(newest), "pair", how="inner")
    return known.where(~(is_decided() & is_old)).select(*STATE)


def _state(
    frame: DataFrame, record: Column, *, more: Sequence[str] = (), **given: Column
) -> DataFrame:
    columns: Mapping[str, Column] = {
        **{name: record[name] for name in LIFE if name != "pair"},
        "pair": F.col("partition"),
        "last_ms": F.unix_millis("timestamp"),
        **given,
    }
    return frame.select(
        *(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in STATE.items()),
        *more,
    )
