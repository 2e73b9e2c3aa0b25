"""What the driver makes of what Spark gives it at the end of a batch."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from halfbridge.serde.manifest import ManifestAttempt
from halfbridge.spark_jobs.sink.attempt import AttemptReport
from halfbridge.spark_jobs.sink.datasource import BatchWriter, StreamWriter, TxnHalf
from halfbridge.spark_jobs.sink.errors import SinkError, SinkOptionError
from halfbridge.spark_jobs.sink.options import parse_options

_BATCH = 7


def _report(batch_id: int) -> AttemptReport:
    return AttemptReport(batch_id, ManifestAttempt("attempt", ()), 0, 0, -1, "query")


@pytest.mark.parametrize(
    "messages",
    [[_report(_BATCH), None], [None], [_report(_BATCH), _report(_BATCH - 1)]],
    ids=["one without", "none at all", "another batch"],
)
def test_a_batch_is_not_published_without_the_report_of_each_task(
    messages: list[AttemptReport | None],
) -> None:
    """The rows of a task that is left out would be lost, and nobody would be told."""
    options = parse_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "app.id": "app",
            "topic": "orders",
            "batch.id": str(_BATCH),
        }
    )
    with pytest.raises(SinkError, match=f"commits batch {_BATCH} with"):
        StreamWriter(options).commit([*messages], _BATCH)
    with pytest.raises(SinkError, match=f"commits batch {_BATCH} with"):
        BatchWriter(options).commit([*messages])


def test_numbers_of_batches_are_refused_where_they_mean_nothing() -> None:
    """A stream has Spark's own, in which a gap tells something; those of writes may be any."""
    schema = StructType([StructField("value", BinaryType())])
    with pytest.raises(SinkOptionError, match=r"batch\.id is of batch writes"):
        TxnHalf({"batch.id": "7"}).streamWriter(schema, overwrite=False)
    with pytest.raises(SinkOptionError, match=r"first\.batch is of streams"):
        TxnHalf({"batch.id": "7", "first.batch": "3"}).writer(schema, overwrite=False)
    with pytest.raises(SinkOptionError, match=r"on\.mismatch is of streams"):
        TxnHalf({"batch.id": "7", "on.mismatch": "fail"}).writer(schema, overwrite=False)
