"""Logs that are audited step by step: many seeds in one log, each cut at points of its own.

One audit covers all seeds, so that a hundred take as long as one.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from halfbridge.serde.records import OpKind
from halfbridge.serde.topics import TopicNames
from halfbridge.spark_jobs.audit.bounds import Bounds, OtherInstallations
from halfbridge.spark_jobs.audit.carried import Carried
from halfbridge.spark_jobs.audit.run import Audit, audited
from halfbridge.spark_jobs.audit.state import State
from halfbridge.spark_jobs.reading.offsets import Range, Snapshot, continued, unread
from tests.spark.audit_lives import Lives
from tests.spark.tape import NAMES, ORDERS, Half, Tape

STEPS = 4
LANE = 10  # partitions of each topic that a seed has
LIVES = 12
GRACE_MS = 200  # of the tape's clock, a record a millisecond
INVOICES = "invoices"
THEIRS = TopicNames("eu.").half
IDENTITY = {"prefix": ""}

Ends = dict[tuple[str, int], int]


@dataclass(frozen=True)
class Log:
    """The logs, and successive snapshots of them."""

    tape: Tape
    snapshots: list[Snapshot]
    others: list[str]  # transaction ids in the half topic of another installation

    def facts(self, spark: SparkSession, snapshot: Snapshot) -> DataFrame:
        """Return the facts of all records in a snapshot."""
        part = Tape()
        for (topic, partition), rows in self.tape.rows.items():
            read = snapshot.topics.get(topic, {}).get(partition, Range(0, 0))
            chosen = [row for row in rows if read.start <= row[4] < read.end]
            part.rows[topic, partition] = chosen
        return part.facts(spark)


def written(seeds: range) -> Log:
    """Write the logs of these seeds."""
    tape, others = Tape(), []
    cuts: list[Ends] = [{} for _ in range(STEPS - 1)]
    for number, seed in enumerate(seeds):
        chance = random.Random(seed)
        tape.lane = number * LANE
        begin_ms, lives, late = tape.clock_ms, Lives(seed, tape), None
        for _ in range(3):
            lives.play(LIVES)
            lives.come_back(LIVES // 2)
            others.append(_delivered_by_others(tape))
            if late is not None:
                tape.real(late)
            late = _overtaken(tape)
        times = sorted(chance.sample(range(begin_ms, tape.clock_ms), chance.choice((1, 2, 3))))
        for step, ends in enumerate(cuts):
            until_ms = times[step] if step < len(times) else tape.clock_ms
            before = cuts[step - 1] if step else {}
            # The cuts of every second seed are uneven: a record may be before the cut of its
            # partition, and the earlier record that caused it behind the cut of another partition.
            ends.update(_ends(tape, number, until_ms, before, chance if seed % 2 else None))
    final = tape.snapshot()
    return Log(tape, [*(_cut(final, ends, step) for step, ends in enumerate(cuts)), final], others)


def _overtaken(tape: Tape) -> Half:
    """Write two committed messages of one key, deliver the second only; return the first."""
    first, second = (tape.half(key=b"b", value=b"order") for _ in range(2))
    for each in (first, second):
        tape.op(OpKind.COMMIT, each)
    tape.real(second)
    return first


def _delivered_by_others(tape: Tape) -> str:
    half = tape.half(born_timestamp=tape.clock_ms)
    tape.drop(NAMES.half, half.pair, half.at)
    tape.real(half)
    return half.txn


def _ends(
    tape: Tape, number: int, until_ms: int, before: Ends, jitter: random.Random | None
) -> Ends:
    """Return the ends of one seed's partitions at a time; with `jitter`, up to 4 records off."""
    ends = {}
    for (topic, partition), rows in tape.rows.items():
        if partition // LANE == number:
            until = [row[4] for row in rows if row[5].timestamp() * 1000 <= until_ms]
            end = max(until, default=-1) + 1 + (jitter.randint(-4, 4) if jitter else 0)
            last = max((row[4] for row in rows), default=-1) + 1
            ends[topic, partition] = max(before.get((topic, partition), 0), min(end, last))
    return ends


def _cut(final: Snapshot, ends: Ends, step: int) -> Snapshot:
    """Return a snapshot with these ends, where some records are unapplied, hidden or unknown."""
    chance = random.Random(step)
    left_out = {INVOICES} if step == 0 else set()
    topics = {
        topic: {n: replace(each, end=ends.get((topic, n), each.end)) for n, each in of.items()}
        for topic, of in final.topics.items()
        if topic not in left_out
    }
    return replace(
        final,
        topics=topics,
        real_topics=tuple(each for each in final.real_topics if each not in left_out),
        applied={
            n: max(0, each.end - chance.randint(0, 5)) for n, each in topics[NAMES.op].items()
        },
        hidden=(ORDERS,) if step == 1 else (),
        gone=tuple(left_out),
    )


def audit_step(
    spark: SparkSession,
    log: Log,
    path: Path,
    step: int,
    *,
    change: Callable[[Carried], Carried] = lambda carried: carried,
    is_written: bool = True,
) -> Mapping[str, Any]:
    """Return the result of the audit that continues the state in `path`, which it writes."""
    state = State(spark, str(path), IDENTITY)
    former = state.snapshot
    snapshot = log.snapshots[step]
    snapshot = continued(former, snapshot) if former else snapshot
    carried = state.carried()
    changed = change(carried) if carried else None

    def find_others() -> OtherInstallations:
        fresh = [] if former and former.others else log.others
        return OtherInstallations(_ranges(log), state.add_others(_ids(spark, fresh)))

    facts, bounds = log.facts(spark, unread(former, snapshot)), Bounds(snapshot, GRACE_MS)
    with audited(facts, bounds, find_others=find_others, carried=changed) as audit:
        if is_written:
            state.write(audit)
        return result(audit)


def audit_whole(spark: SparkSession, log: Log) -> Mapping[str, Any]:
    """Return the result of an audit of the last snapshot, without a state."""
    others = OtherInstallations(_ranges(log), _ids(spark, log.others))
    snapshot = log.snapshots[-1]
    facts, bounds = log.facts(spark, snapshot), Bounds(snapshot, GRACE_MS)
    with audited(facts, bounds, find_others=lambda: others) as audit:
        return result(audit)


def result(audit: Audit) -> Mapping[str, Any]:
    """Return the whole result of an audit."""
    return {
        "records": audit.records,
        "states": {state: count for state, count in audit.states.items() if count},
        "of_others": audit.of_others,
        "kinds": audit.kinds,
        "findings": sorted(str(row.asDict()) for row in audit.findings.collect()),
    }


def _ranges(log: Log) -> dict[str, dict[int, Range]]:
    return {THEIRS: {0: Range(0, len(log.others))}}


def _ids(spark: SparkSession, ids: list[str]) -> DataFrame:
    return spark.createDataFrame([(each,) for each in ids], "transaction_id string")
