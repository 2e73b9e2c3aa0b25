"""Runs an audit over facts: the order of the computations, and the frames that are persisted."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by
from pyspark.storagelevel import StorageLevel

from halfbridge.spark_jobs.audit import facts as columns
from halfbridge.spark_jobs.audit.finding import VIOLATIONS
from halfbridge.spark_jobs.audit.findings import all_findings, junk_without_letter, out_of_order
from halfbridge.spark_jobs.audit.matching import match
from halfbridge.spark_jobs.audit.others import Others
from halfbridge.spark_jobs.audit.ruling import DELIVER, rule
from halfbridge.spark_jobs.audit.sift import DELIVERED, LANES, STRANGE, sift, suspects
from halfbridge.spark_jobs.audit.verdict import judge, lives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from halfbridge.spark_jobs.audit.bounds import Bounds

# Up to this many facts about transactions that are not plain, planning takes longer than computing:
# 210,000 facts took 15 to 17 s in one partition, and 17 to 20 s in eight (2 cores). So they are
# computed in one partition, without shuffles, generated code or adaptive planning.
_FEW = 300_000
_FOR_FEW = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        records: Kind of record -> number of records read.
        states: State of a transaction -> number of transactions.
        looked_at: Number of transaction ids that are not plain.
        of_others: Number of transactions in the real topics that belong to other installations.
        bounds: The bounds of the snapshot, other installations included.
        kinds: Kind of finding -> number of findings.
        findings: FINDINGS, violations first; computed when it is read.
    """

    records: dict[str, int]
    states: dict[str, int]
    looked_at: int
    of_others: int
    bounds: Bounds
    kinds: dict[str, int]
    findings: DataFrame

    @property
    def violations(self) -> int:
        """Number of findings that are violations."""
        return sum(self.kinds.get(kind, 0) for kind in VIOLATIONS)


@contextmanager
def audited(
    facts: DataFrame,
    bounds: Bounds,
    *,
    told: Callable[[str], None] = lambda _: None,
    find_others: Callable[[], Others] = Others,
) -> Iterator[Audit]:
    """Yield the audit of `facts`. The findings can be read only within the block.

    Args:
        facts: FACTS of half topic, op topic, dead-letter topic and all real topics together.
        bounds: The bounds of the snapshot.
        told: Is called with lines about the progress.
        find_others: Returns the transactions of other installations. Called only if there are real
            records whose transaction is not in this installation's half topic.
    """
    kept: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    try:
        yield _audit(facts, bounds, keep, told, find_others)
    finally:
        for frame in kept:
            frame.unpersist()


def _audit(
    facts: DataFrame,
    bounds: Bounds,
    keep: Callable[[DataFrame], DataFrame],
    told: Callable[[str], None],
    find_others: Callable[[], Others],
) -> Audit:
    facts = keep(facts)
    records = _records(facts)
    told(f"read {sum(records.values()):,} records")
    sifted = keep(sift(facts, bounds))
    states = {row["state"]: row["count"] for row in sifted.groupBy("state").count().collect()}
    looked_at = states.pop(None, 0)
    owned, of_others = None, 0
    if strange := states.pop(STRANGE, 0):
        others = find_others()
        topic_ids = {**bounds.snapshot.topic_ids, **others.topic_ids}
        snapshot = replace(bounds.snapshot, others=others.ranges, topic_ids=topic_ids)
        bounds = replace(bounds, snapshot=snapshot)
        if others.ids is not None:
            ids = sifted.where(F.col("state") == STRANGE).select("txn")
            owned = keep(ids.join(others.ids, "txn", how="left_semi"))
            of_others = owned.count()
            told(f"{of_others:,} transactions of other installations")
        looked_at += strange - of_others
    told(f"{sum(states.values()):,} plain transactions, {looked_at:,} to look at")
    lanes = sifted.where(F.col("state") == DELIVERED).select(*LANES)
    found = out_of_order(lanes, bounds) if not looked_at else None
    if found is None:
        looked = _computed(suspects(facts, sifted, looked_at, owned))
        are_few = looked.count() <= _FEW
        looked = looked.coalesce(1) if are_few else looked
        with _options(facts.sparkSession, _FOR_FEW if are_few else {}):
            suspicions, arrived = _looked_at(looked, bounds, states)
        told(f"{looked_at:,} transactions looked at")
        found = suspicions.unionAll(out_of_order(lanes.unionAll(arrived), bounds))
    if any(records.get(columns.NAMES[junk]) for junk in (columns.IS_JUNK_HALF, columns.IS_JUNK_OP)):
        found = found.unionAll(junk_without_letter(facts, bounds))
    found = keep(found)  # before the sort, which computes its input twice
    kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    return Audit(records, states, looked_at, of_others, bounds, kinds, _violations_first(found))


def _looked_at(
    looked: DataFrame, bounds: Bounds, states: dict[str, int]
) -> tuple[DataFrame, DataFrame]:
    """Judge the FACTS of transactions that are not plain, and add their states to `states`.

    Returns:
        The FINDINGS, computed, and the LANES of the messages that were delivered as required.
    """
    ruling = rule(looked, bounds, _computed)
    matched = match(looked, ruling.messages, _computed)
    verdicts = judge(matched, bounds, _computed)
    messages = verdicts.messages
    for row in lives(messages).groupBy("state").count().collect():
        states[row["state"]] = states.get(row["state"], 0) + row["count"]
    arrived = (F.col("must") == DELIVER) & (F.col("came") == DELIVERED)
    more = messages.withColumn("topic_number", bounds.topic_number(F.col("real_topic")))
    found = _computed(all_findings(ruling, matched, verdicts, bounds))
    return found, more.where(arrived).select(*LANES)


@contextmanager
def _options(session: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Set options of the session for the time of the block: the session may be the user's."""
    before = {name: str(session.conf.get(name)) for name in options}
    try:
        for name, value in options.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)


def _computed(frame: DataFrame) -> DataFrame:
    """Compute a frame, and return it without its lineage.

    Spark's planner traverses the lineage of every joined frame repeatedly. After a few joins of a
    frame with frames that were derived from it, planning takes longer than computing all rows.
    """
    settled: DataFrame = frame.localCheckpoint(eager=True)
    return settled


def _records(facts: DataFrame) -> dict[str, int]:
    counted = facts.groupBy("what").count().collect()
    return {columns.NAMES[row["what"]]: row["count"] for row in counted}


def _violations_first(found: DataFrame) -> DataFrame:
    is_notice = (~F.col("kind").isin(*VIOLATIONS)).cast("int")
    return found.orderBy(is_notice, "kind", "transaction_id", "topic", "partition", "offset")
