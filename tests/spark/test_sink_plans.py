"""Whose batch it is: by the checkpoint and the plan in it, where rows alone do not tell."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from halfbridge.serde.records import OpKind
from halfbridge.spark_jobs.sink.checkpoint import BatchPlan
from halfbridge.spark_jobs.sink.errors import (
    BatchOrderError,
    PlanMismatchError,
    ReplayMismatchError,
)
from halfbridge.spark_jobs.sink.process import SinkProcess
from tests.spark.sink_parts import Sink
from tests.spark.sink_scene import SCHEMA, SinkScene, check_exactly_once

pytestmark = [pytest.mark.spark, pytest.mark.broker]

HEARTBEATS = [(b"node-1", b"alive"), (b"node-2", b"alive")]
PLAN = BatchPlan("query", "a1")


def test_a_query_that_is_not_deterministic_keeps_its_first_rows_on_request(
    sink: Sink,
) -> None:
    """Its driver died behind the manifest: each restart brings other rows, and would fail."""
    first, again = sink.attempt(), sink.attempt(first=1)
    sink.committer.record(0, [first], PLAN)
    with pytest.raises(
        ReplayMismatchError, match=r"set the option on\.mismatch to keep-first"
    ) as why:
        sink.committer.commit(0, [again], PLAN)
    assert (why.value.app_id, why.value.batch_id) == (sink.options.app_id, 0)

    sink.options = replace(sink.options, keeps_first=True)
    anew = sink.attempt(first=2)
    sink.committer.commit(0, [anew], PLAN)
    assert (sink.decided(first), sink.decided(anew)) == ({OpKind.COMMIT}, {OpKind.ROLLBACK})
    after = sink.attempt(1)
    sink.committer.commit(1, [after], BatchPlan("query", "b2", "a1", is_before_done=True))
    assert sink.decided(after) == {OpKind.COMMIT}


@pytest.mark.parametrize(
    ("plan", "error", "text"),
    [
        (BatchPlan("query", "other"), PlanMismatchError, "by another plan"),
        (BatchPlan("query"), ReplayMismatchError, "has no effect"),
        (BatchPlan("another", "other"), ReplayMismatchError, "from the checkpoint of query"),
        (BatchPlan("query", "a1", departure="it ends elsewhere"), PlanMismatchError, "elsewhere"),
    ],
)
def test_rows_are_kept_by_the_same_plan_only(
    sink: Sink, plan: BatchPlan, error: type[Exception], text: str
) -> None:
    """Another plan, or one that is not known, has rows that nobody has published."""
    sink.options = replace(sink.options, keeps_first=True)
    sink.committer.commit(0, [sink.attempt()], PLAN)
    other = sink.attempt(first=1)
    with pytest.raises(error, match=text):
        sink.committer.commit(0, [other], plan)
    assert sink.decided(other) == {OpKind.ROLLBACK}


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        (BatchPlan("another", "b2"), ReplayMismatchError),
        (BatchPlan("another"), ReplayMismatchError),
        (BatchPlan("query", "b2"), PlanMismatchError),
    ],
)
def test_heartbeats_of_a_new_checkpoint_are_not_those_of_the_old(
    sink: Sink, plan: BatchPlan, error: type[Exception]
) -> None:
    """Their rows are equal by number and hash: they were dropped without an error."""
    sink.committer.commit(0, [sink.write(HEARTBEATS)], PLAN)
    again = sink.write(HEARTBEATS)
    sink.committer.commit(0, [again], PLAN)
    with pytest.raises(error):
        sink.committer.commit(0, [sink.write(HEARTBEATS)], plan)


def test_two_drivers_that_plan_a_batch_otherwise(sink: Sink) -> None:
    """One of them is published. The checkpoint has the plan of the other: nothing continues by it.

    A has planned [0, 40), B [0, 60) in its place, on a store that writes over what is there.
    """
    of_a, of_b = sink.attempt(rows=40), sink.attempt(rows=60)
    sink.committer.commit(0, [of_a], BatchPlan("query", "a's"))
    with pytest.raises(PlanMismatchError, match="Two drivers ran on one checkpoint"):
        sink.committer.commit(0, [of_b], BatchPlan("query", "b's"))
    # B dies. A has noted the batch as done, so that a restart continues after b's plan.
    after = sink.attempt(1, first=60)
    with pytest.raises(PlanMismatchError, match=r"begins where offsets/0 .* another one"):
        sink.committer.commit(1, [after], BatchPlan("query", "c", "b's", is_before_done=True))
    assert sink.decided(of_b) == sink.decided(after) == {OpKind.ROLLBACK}
    # The operator brings the plan back that was published.
    anew = sink.attempt(1, first=40)
    sink.committer.commit(1, [anew], BatchPlan("query", "c", "a's", is_before_done=True))
    assert sink.decided(anew) == {OpKind.COMMIT}


def test_a_driver_whose_plan_was_written_over_publishes_nothing(sink: Sink) -> None:
    """It runs [0, 40), and a restart would continue after [0, 60)."""
    report = sink.attempt()
    with pytest.raises(PlanMismatchError, match="start that one again"):
        sink.committer.commit(0, [report], replace(PLAN, departure="offsets/0 ends elsewhere"))
    assert (sink.decided(report), sink.scene.manifests()) == ({OpKind.ROLLBACK}, [])


def test_a_void_commit_of_another_plan_says_nothing(sink: Sink) -> None:
    """Whose plan it was is looked up where COMMITs of the batch before differ."""
    late = replace(sink.attempt(), first_append_timestamp=1)
    with pytest.raises(Exception, match="was given up"):
        sink.committer.commit(0, [late], BatchPlan("query", "void"))
    sink.committer.commit(0, [sink.attempt()], PLAN)
    report = sink.attempt(1)
    sink.committer.commit(1, [report], BatchPlan("query", "b2", "a1", is_before_done=True))
    assert sink.decided(report) == {OpKind.COMMIT}


@pytest.mark.parametrize("is_done", [True, False])
def test_a_new_process_writes_no_commit_again_that_spark_has_seen(
    sink: Sink, is_done: bool
) -> None:
    """Spark ends idle Python workers after a minute: each batch began in a new one."""
    first = sink.attempt()
    sink.committer.commit(0, [first], PLAN)
    written = []
    for partition in range(2):
        written += sink.scene.ops(partition)
    sink.process = SinkProcess(sink.process.ports)
    second = sink.attempt(1)
    plan = BatchPlan("query", "b2", "a1", is_before_done=is_done)
    sink.committer.commit(1, [second], plan)
    came = [op for partition in range(2) for op in sink.scene.ops(partition)]
    again = len(came) - len(written) - len(second.attempt.transactions)
    assert again == (0 if is_done else len(first.attempt.transactions))


def test_an_older_batch_is_settled_whatever_spark_has_seen_of_the_one_before(sink: Sink) -> None:
    """The driver died behind the manifest of batch 0; another sink had batches 1 to 4."""
    first = sink.attempt()
    sink.committer.record(0, [first], PLAN)
    sink.process = SinkProcess(sink.process.ports)
    sink.options = replace(sink.options, first_batch=5)
    sink.committer.commit(5, [sink.attempt(5)], BatchPlan("query", "b6", "b5", is_before_done=True))
    assert sink.decided(first) == {OpKind.COMMIT}


def test_a_backfill_of_an_older_date_is_refused_with_advice_to_take_its_own_app(sink: Sink) -> None:
    """Its number is smaller than one that was published."""
    sink.options = replace(sink.options, batch_id=20261121)
    sink.committer.commit(20261121, [sink.attempt(20261121)])
    with pytest.raises(BatchOrderError, match=r"an app\.id of its own .*feed-backfill"):
        sink.committer.commit(20261101, [sink.attempt(20261101)])


def test_an_empty_batch_is_not_said_to_be_there_before(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no attempts by which it would be known as this very one."""
    caplog.set_level("INFO", "halfbridge.spark")
    sink.committer.commit(0, [], PLAN)
    assert "published before" not in caplog.text


# --- in Spark -------------------------------------------------------------------------------


def write_over(checkpoint: Path, batch: int) -> None:
    """Put a plan in the place of a batch's that another driver made, with one file less."""
    place = checkpoint / "offsets" / str(batch)
    version, settings, offset = place.read_text().split("\n")
    earlier = json.dumps({"logOffset": json.loads(offset)["logOffset"] - 1})
    (place.parent / f".{batch}.crc").unlink(missing_ok=True)
    place.write_text(f"{version}\n{settings}\n{earlier}")


def overwriting(checkpoint: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step of a query in which another driver writes over the plan of batch 0."""

    def passed_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json  # noqa: PLC0415 (in a worker, which does not have this module)
        from pathlib import Path  # noqa: PLC0415 (as above)

        place = Path(checkpoint, "offsets", "0")
        version, settings, offset = place.read_text().split("\n")
        later = json.dumps({"logOffset": json.loads(offset)["logOffset"] + 1})
        Path(checkpoint, "offsets", ".0.crc").unlink(missing_ok=True)
        place.write_text(f"{version}\n{settings}\n{later}")
        yield from batches

    return passed_on


def test_a_plan_that_is_written_over_while_it_runs(spark: SparkSession, scene: SinkScene) -> None:
    """The driver knows what it has planned, the checkpoint says otherwise: nothing is published."""
    scene.add_file(20)
    stream = scene.stream(spark).coalesce(1)
    with pytest.raises(PySparkException, match="offsets/0 does not end where this driver's batch"):
        scene.run(stream.mapInArrow(overwriting(str(scene.checkpoint)), SCHEMA))
    assert scene.settled() == []
    assert scene.undecided() == set()


def test_a_plan_that_was_written_over_behind_its_commit(
    spark: SparkSession, scene: SinkScene
) -> None:
    """A restart would publish the first file's rows once more: the query fails with the reason."""
    numbers = scene.add_file(20)
    scene.run(scene.stream(spark))
    numbers_after = scene.add_file(20)
    plan = scene.checkpoint / "offsets" / "0"
    published = plan.read_bytes()
    offsets = published.split(b"\n", 2)[2]
    assert [each.plan_hash for each in scene.manifests()] == [sha256(offsets).hexdigest()]
    write_over(scene.checkpoint, 0)
    with pytest.raises(PySparkException, match=r"begins where offsets/0 .* another one"):
        scene.run(scene.stream(spark))
    check_exactly_once(scene.settled(), numbers)

    plan.write_bytes(published)
    scene.run(scene.stream(spark))
    check_exactly_once(scene.settled(), numbers + numbers_after)
    assert scene.undecided() == set()


def test_a_checkpoint_that_is_not_an_option(spark: SparkSession, scene: SinkScene) -> None:
    """The session has it: the driver's JVM is asked, and knows."""
    numbers = scene.add_file(20)
    options = scene.options()
    del options["checkpointLocation"]
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(scene.directory / "of-session"))
    try:
        writer = scene.stream(spark).writeStream.format("txn_half").queryName("by-session")
        query = writer.options(**options).trigger(availableNow=True).start()
        query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    (manifest,) = scene.manifests()
    assert manifest.query_id == query.id
    assert len(manifest.plan_hash) == 64
    check_exactly_once(scene.settled(), numbers)


def test_the_drivers_jvm_keeps_nothing_for_a_commit(spark: SparkSession, scene: SinkScene) -> None:
    """What it hands out it would keep for ever: some twenty objects a batch."""
    server = spark.sparkContext._gateway.java_gateway_server
    for _ in range(2):
        scene.add_file(5)
    scene.run(scene.stream(spark))
    before = server.getGateway().getBindings().size()
    for _ in range(5):
        scene.add_file(5)
    scene.run(scene.stream(spark))
    assert all(len(each.plan_hash) == 64 for each in scene.manifests())
    assert server.getGateway().getBindings().size() - before < 20
