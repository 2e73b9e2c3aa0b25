"""The audit of what an operator's commands and the daemon made of dead letters, all in memory."""

from datetime import datetime, timezone

import pytest
from pyspark.sql import SparkSession

from halfbridge.checker.admin.dead.letters import Remedy
from halfbridge.serde.records import OpKind, OpSource
from halfbridge.spark_jobs.audit.bounds import Bounds
from halfbridge.spark_jobs.audit.findings import LATE, VIOLATIONS
from halfbridge.spark_jobs.audit.run import audited
from halfbridge.testkit.memory import MemoryStack
from tests.kit.dead_letters import TOPIC, Scene, sent
from tests.spark.marks import INTERPRETED
from tests.spark.tape import NAMES, Tape

pytestmark = [*INTERPRETED, pytest.mark.spark_long]


def brought_back(scene: Scene) -> None:
    """Make dead letters of each kind, and bring each transaction back."""
    scene.undeliverable(1, count=2)
    scene.extra(2)
    scene.late(3)
    scene.incomplete(4)
    scene.discarded(5)
    scene.discarded(6)
    scene.settle()
    scene.redo(Remedy.REDELIVER, 1)  # refused again: the topic is still missing
    scene.settle()
    scene.stack.create_topic("absent")
    scene.redo(Remedy.REDELIVER, accept_partial=True)
    scene.redo(Remedy.RESUME)
    scene.op(5, OpKind.COMMIT, scene.half(7, 0), source=OpSource.CHECK, resume_count=1)
    scene.op(6, OpKind.ROLLBACK, 0, source=OpSource.CHECK, resume_count=1)
    scene.op(7, OpKind.ROLLBACK, 0)
    scene.settle()
    assert scene.delivered("absent") == sent((1, 0), (1, 1))
    assert scene.delivered() == sent(
        (2, 0), (2, 1), (3, 0), (2, 2), (3, 1), (4, 0), (4, 2), (5, 0), (5, 1)
    )


def tape_of(scene: Scene) -> Tape:
    """Return what read_committed readers see of all topics, as Spark reads it."""
    tape, broker = Tape(), scene.stack.machine.broker
    for topic in (NAMES.half, NAMES.op, NAMES.dead, TOPIC, "absent"):
        for partition in broker.topic(topic).partitions:
            rows = tape.rows[topic, partition.number]
            for record in partition.read(0, partition.end)[0]:
                kind, time_ms = record.timestamp()
                time = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
                place = (topic, partition.number, record.offset(), time, kind - 1)
                rows.append((record.key(), record.value(), *place, record.headers()))
                tape.clock_ms = max(tape.clock_ms, time_ms)
    return tape


def test_the_audit_finds_nothing_strange(spark: SparkSession, interpreted: None) -> None:
    """Redelivered, refused again, in part, resumed and committed, resumed and rolled back."""
    with MemoryStack(partitions=1) as stack:
        stack.create_topic(TOPIC)
        scene = Scene(stack)
        brought_back(scene)
        tape, marks = tape_of(scene), len(scene.marks())
    with audited(tape.facts(spark), Bounds(tape.snapshot())) as audit:
        assert audit.violations == 0, audit.findings.collect()
        assert audit.kinds.keys() <= {LATE}
        assert LATE not in VIOLATIONS
        assert audit.records["mark_of_dead_letter"] == marks > 0
