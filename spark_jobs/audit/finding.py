"""What a finding is: its kinds, and its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The law is broken.
LOST = "lost"
TORN = "torn"
PHANTOM = "phantom"
DUPLICATE = "duplicate"
MISMATCH = "mismatch"
REORDERED = "reordered"
CONFLICT = "conflict"
VIOLATIONS = (LOST, TORN, PHANTOM, DUPLICATE, MISMATCH, REORDERED, CONFLICT)
# It is not, but somebody may want to know.
LATE = "late"
OVERDUE = "overdue"
GONE = "expired"
NOTICES = (LATE, OVERDUE, GONE)

# Contract of everything that finds: what is wrong with which transaction, and where to look.
FINDINGS = {
    "kind": "string",
    "transaction_id": "string",
    "resume_count": "int",
    "topic": "string",  # with partition and offset: the record that shows it
    "partition": "int",
    "offset": "long",
    "pair": "int",  # half and op partition
    "half_offset": "long",
    "op_offset": "long",
    "detail": "string",
}


def findings_of(frame: DataFrame, **given: Column) -> DataFrame:
    """Return FINDINGS; txn and resume of `frame` are taken, and what is not given is null."""
    columns = {
        "transaction_id": F.col("txn") if "txn" in frame.columns else F.lit(None),
        "resume_count": F.col("resume") if "resume" in frame.columns else F.lit(None),
        **given,
    }
    return frame.select(
        *(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in FINDINGS.items())
    )


def tell(kind: str, *parts: Column, **place: Column) -> Column:
    """Return a struct of kind, detail (the parts in one text) and the given places."""
    detail = F.concat(*(part.cast("string") for part in parts)).alias("detail")
    where = (column.alias(name) for name, column in place.items())
    return F.struct(F.lit(kind).alias("kind"), detail, *where)
