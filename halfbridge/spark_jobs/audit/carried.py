"""What a run takes over from earlier runs of an incremental audit, and what it leaves to the next.

A transaction is settled if it has no finding, and only a new record of its own can change its
verdict. The facts of settled transactions are set aside. All others are open: each run judges them
again. A settled transaction that a new fact names is revived: all its facts are judged once more.

So a run judges all facts of each transaction that it judges, with the steps of a whole audit, and
the others are as they were. Only the order of deliveries concerns several transactions: see
`order`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from halfbridge.serde.records import OpKind
from halfbridge.spark_jobs.audit.computing import computed, counted
from halfbridge.spark_jobs.audit.facts import (
    FACTS,
    IS_DEAD_LETTER_OF_UNREADABLE,
    IS_UNREADABLE_HALF,
    IS_UNREADABLE_OP,
)
from halfbridge.spark_jobs.audit.ruling import OPEN
from halfbridge.spark_jobs.audit.sift import (
    DELIVERED,
    ROLLED_BACK,
    UNDECIDED,
    WITHOUT_HALF,
    broadcast_few,
    of_transactions,
)
from halfbridge.spark_jobs.audit.verdict import ELSEWHERE, PENDING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds
    from halfbridge.spark_jobs.audit.ruling import Ruled
    from halfbridge.spark_jobs.audit.verdict import Verdicts

# Kinds of records that have no transaction. A run compares its own with those of earlier runs, so
# their facts are always kept with the open ones.
_UNREADABLE = (IS_UNREADABLE_HALF, IS_UNREADABLE_OP, IS_DEAD_LETTER_OF_UNREADABLE)
# State of a settled transaction that belongs to another installation.
OF_OTHERS = "of_others"
_PLACES = {
    "order_key": "long",
    "pair": "int",
    "topic": "string",
    "real_partition": "int",
    "real_offset": "long",
    "op_offset": "long",
}
# Tables of which every run adds rows. A row is in force unless its transaction was revived in a
# later generation.
ADDED = {
    "facts": FACTS,  # of settled transactions
    # Rows of settled transactions: one with the state of each life, and one with the place of each
    # correct delivery. A plain transaction has both in one row. State null: counted nowhere.
    "settled": {"transaction_id": "string", "state": "string", **_PLACES},
    "revived": {"transaction_id": "string"},
}
# Tables that every run writes whole.
REPLACED = {
    "open_facts": FACTS,
    "reordered": {"transaction_id": "string", **_PLACES, "op_offset_before": "long"},
}


@dataclass(frozen=True, slots=True)
class Carried:
    """What earlier runs have left: the tables of ADDED, with `generation`, and of REPLACED.

    Of `revived` each transaction has its last row only.
    """

    records: Mapping[str, int]  # kind of record -> number of records read
    states: Mapping[str, int]  # state -> number of settled transactions
    facts: DataFrame
    settled: DataFrame
    revived: DataFrame
    open_facts: DataFrame
    reordered: DataFrame

    def in_force(self, rows: DataFrame) -> DataFrame:
        """Return those rows of a table of ADDED whose transaction was not revived since."""
        last = self.revived.withColumnRenamed("generation", "revived")
        is_stale = F.coalesce(F.col("revived") > F.col("generation"), F.lit(col=False))
        return rows.join(last, "transaction_id", how="left").where(~is_stale).drop("revived")


@dataclass(frozen=True, slots=True)
class Revived:
    """The settled transactions that new facts name."""

    carried: Carried
    ids: DataFrame  # transaction_id
    facts: DataFrame  # FACTS
    deliveries: DataFrame  # rows of `settled`
    # State -> number of the transactions of earlier runs that are still settled.
    still_settled: Counter[str]


@dataclass(frozen=True, slots=True)
class Examined:
    """The transactions that are not plain."""

    findings: DataFrame  # FINDINGS, computed
    deliveries: DataFrame  # DELIVERY_PLACES of the correct deliveries
    lives: DataFrame  # of `verdict.lives`
    states: Counter[str]  # state -> number of lives
    unsettled: DataFrame  # of `unsettled`


@dataclass(frozen=True, slots=True)
class Judged:
    """What a run has judged."""

    facts: DataFrame  # FACTS, of which those without a transaction are not complete
    count: int  # number of facts
    sifted: DataFrame
    reordered: DataFrame  # of `order.all_reordered`
    revived: Revived | None = None
    owned: DataFrame | None = None  # transaction_id, of other installations
    examined: Examined | None = None


def revive(facts: DataFrame, count: int, carried: Carried) -> Revived:
    """Return the settled transactions that the new `facts`, which are `count`, name."""
    named = facts.where(F.col("transaction_id").isNotNull()).select("transaction_id").distinct()
    settled = computed(carried.in_force(of_transactions(carried.settled, named, count)))
    states: Counter[str] = counted(settled, "state")
    ids = settled.select("transaction_id").distinct()
    still_settled = Counter(carried.states) - states
    if not states:  # then the facts, the largest table, are not read
        return Revived(carried, ids, carried.open_facts.limit(0), settled, still_settled)
    facts = carried.in_force(of_transactions(carried.facts, ids, count)).select(*FACTS)
    return Revived(carried, ids, facts, settled, still_settled)


def unsettled(ruling: Ruled, verdicts: Verdicts, found: DataFrame) -> DataFrame:
    """Return transaction_id of examined transactions with a finding, or whose verdict may change.

    It may change without a new record of theirs, because the daemon or the half topic went on.
    """
    may_change = F.col("kind").isNull() | (F.col("required") == OPEN)
    may_change = may_change | F.col("outcome").isin(PENDING, ELSEWHERE)
    commits = ruling.orphans.where((F.col("kind") == OpKind.COMMIT.value) & ~F.col("is_foreign"))
    frames = (verdicts.messages.where(may_change), commits, found)
    ids = [each.select("transaction_id") for each in frames]
    return ids[0].unionAll(ids[1]).unionAll(ids[2]).where(F.col("transaction_id").isNotNull())


def left_by(judged: Judged, bounds: Bounds) -> dict[str, DataFrame]:
    """Return the rows for the tables of ADDED and REPLACED, by their names."""
    sifted, facts = judged.sifted, judged.facts
    open_ids = sifted.where(F.col("state") == UNDECIDED).select("transaction_id")
    if judged.examined is not None:
        open_ids = open_ids.unionAll(judged.examined.unsettled)
    open_ids = broadcast_few(computed(open_ids.distinct()), judged.count)

    def settled(rows: DataFrame) -> DataFrame:
        return rows.join(open_ids, "transaction_id", how="left_anti").select(*rows.columns)

    def named(places: DataFrame) -> DataFrame:
        return places.withColumn("topic", bounds.topic_name(F.col("topic_number")))

    open_facts = facts.join(open_ids, "transaction_id", how="left_semi").select(*FACTS)
    none = sifted.select("transaction_id").limit(0)
    return {
        "facts": settled(facts.where(F.col("transaction_id").isNotNull())),
        "settled": named(settled(_states_and_places(judged))).select(*ADDED["settled"]),
        "revived": none if judged.revived is None else judged.revived.ids,
        "open_facts": open_facts.unionAll(facts.where(F.col("record_type").isin(*_UNREADABLE))),
        "reordered": named(judged.reordered).select(*REPLACED["reordered"]),
    }


def _states_and_places(judged: Judged) -> DataFrame:
    """Return rows of `settled` for all that was judged, with the numbers of topics."""
    sifted, given = judged.sifted, F.col("state")
    found = sifted.where(given.isin(DELIVERED, ROLLED_BACK))
    others = sifted.where(given.isNull() | (given == WITHOUT_HALF)).select("transaction_id")
    if (owned := judged.owned) is not None:
        found = found.unionByName(
            owned.select("transaction_id", F.lit(OF_OTHERS).alias("state")),
            allowMissingColumns=True,
        )
        others = others.join(owned, "transaction_id", how="left_anti")
    if judged.examined is not None:
        lives = others.join(judged.examined.lives, "transaction_id", how="left")
        for each in (lives, judged.examined.deliveries):
            found = found.unionByName(each, allowMissingColumns=True)
    return found
