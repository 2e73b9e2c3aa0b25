"""The kinds of findings, and the columns of a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Violations: the conservation law is broken.
LOST = "lost"
TORN = "torn"
PHANTOM = "phantom"
DUPLICATE = "duplicate"
MISMATCH = "mismatch"
REORDERED = "reordered"
CONFLICT = "conflict"
VIOLATIONS = (LOST, TORN, PHANTOM, DUPLICATE, MISMATCH, REORDERED, CONFLICT)
# Notices: the conservation law holds.
LATE = "late"
OVERDUE = "overdue"
GONE = "expired"
REPEATED = "repeated"
NOTICES = (LATE, OVERDUE, GONE, REPEATED)

# Columns of every frame of findings.
FINDINGS = {
    "kind": "string",
    "transaction_id": "string",
    "resume_count": "int",
    "topic": "string",  # with partition and offset: the record that shows the finding
    "partition": "int",
    "offset": "long",
    "pair": "int",  # half and op partition
    "half_offset": "long",
    "op_offset": "long",
    "detail": "string",
}


def findings_of(frame: DataFrame, **given: Column) -> DataFrame:
    """Return FINDINGS from `given`, and from txn and resume of `frame`; other columns are null."""
    columns = {
        "transaction_id": F.col("txn") if "txn" in frame.columns else F.lit(None),
        "resume_count": F.col("resume") if "resume" in frame.columns else F.lit(None),
        **given,
    }
    return frame.select(
        *(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in FINDINGS.items())
    )


def tell(kind: str, *parts: Column, **place: Column) -> Column:
    """Return a struct of kind, detail (the concatenated parts) and the columns of `place`."""
    detail = F.concat(*(part.cast("string") for part in parts)).alias("detail")
    where = (column.alias(name) for name, column in place.items())
    return F.struct(F.lit(kind).alias("kind"), detail, *where)
