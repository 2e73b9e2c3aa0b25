"""A driver process: streams the files of a scene into the sink until all are sent.

python tests/spark/sink_driver.py '{"rows": "...", "options": {...}, "format": "txn_half", ...}'
"""

import json
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import functions as F

from halfbridge.spark_jobs.capabilities import HAS_DATA_SOURCES
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.sink import register, write_batch
from tests.spark import sink_faults

READY = "ready"
DONE = "done"
WRITE_BATCH = "write_batch"  # in place of a format: foreachBatch with the sink's function
FAILS_AT = 10  # batches of rows, of 15
SCHEMA = "key binary, value binary"
SESSION = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.files.openCostInBytes": "1",
    "spark.sql.files.maxPartitionBytes": "1000",  # several tasks of a small file
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    "spark.buffer.size": "500",  # bytes: a task that fails has sent the rows it got before
}


def fail_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, but on a task's first attempt fail when most of them are sent."""
    context: Any = TaskContext.get()
    for number, batch in enumerate(batches):
        yield batch
        if context.attemptNumber() == 0 and number == FAILS_AT:
            raise RuntimeError("the first attempt fails")


def main(given: dict[str, Any]) -> None:
    """Run the stream; print READY when the query runs, DONE at the end."""
    master = given.get("master", "local[2]")
    with spark_session("sink-driver", options={**SESSION, "spark.master": master}) as spark:
        if HAS_DATA_SOURCES:
            register(spark)
        if faults := given.get("faults"):
            cloudpickle.register_pickle_by_value(sink_faults)
            spark.dataSource.register(sink_faults.faulty(Path(faults)))
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame = rows.parquet(given["rows"])
        if given.get("tasks"):
            frame = frame.coalesce(given["tasks"])
        if given.get("random"):
            tail = F.encode(F.concat(F.lit("-"), F.expr("uuid()")), "utf-8")
            frame = frame.withColumn("value", F.concat("value", tail))
        if given.get("fail_once"):
            cloudpickle.register_pickle_by_value(sys.modules[fail_once.__module__])
            frame = frame.mapInArrow(fail_once, SCHEMA)
        writer = frame.writeStream.options(**given["options"])
        if given["format"] == WRITE_BATCH:
            writer = writer.foreachBatch(partial(write_batch, options=given["options"]))
        else:
            writer = writer.format(given["format"])
        query = writer.trigger(availableNow=True).start()
        print(READY, flush=True)
        query.awaitTermination()
        print(DONE, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
