"""Runs an audit over facts, and makes its report.

The run fixes the order of the computations and the frames that are persisted. The report is one
JSON object, or a few lines of text.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypedDict, cast

from pyspark.sql import functions as F

from halfbridge.serde.topics import TopicNames
from halfbridge.serde.units import MS_PER_S
from halfbridge.spark_jobs.audit import facts as columns
from halfbridge.spark_jobs.audit.bounds import OtherInstallations
from halfbridge.spark_jobs.audit.carried import (
    OF_OTHERS,
    Examined,
    Judged,
    revive,
    unsettled,
)
from halfbridge.spark_jobs.audit.computing import FEW_RECORDS, computed, counted, for_few, keeping
from halfbridge.spark_jobs.audit.findings import (
    NOTICES,
    VIOLATIONS,
    all_findings,
    out_of_order,
    unreadable_without_dead_letter,
)
from halfbridge.spark_jobs.audit.matching import match
from halfbridge.spark_jobs.audit.order import all_reordered, reordered
from halfbridge.spark_jobs.audit.ruling import DELIVER, rule
from halfbridge.spark_jobs.audit.sift import (
    DELIVERED,
    DELIVERY_PLACES,
    DISCARDED,
    ROLLED_BACK,
    UNDECIDED,
    WITHOUT_HALF,
    of_transactions,
    sift,
    suspects,
)
from halfbridge.spark_jobs.audit.verdict import (
    ELSEWHERE,
    EXPIRED,
    MISSING,
    PENDING,
    REFUSED,
    judge,
    lives,
)
from halfbridge.spark_jobs.reading.offsets import NOTHING_LEFT_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from halfbridge.spark_jobs.audit.bounds import Bounds
    from halfbridge.spark_jobs.audit.carried import Carried
    from halfbridge.spark_jobs.reading.offsets import Snapshot


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit."""

    records: dict[str, int]  # kind of record -> number of records read
    states: dict[str, int]  # state of a transaction -> number of transactions
    examined: int  # number of transaction ids that are not plain
    of_others: int  # number of transactions in the real topics that belong to other installations
    bounds: Bounds
    kinds: dict[str, int]  # kind of finding -> number of findings
    findings: DataFrame  # FINDINGS, violations first; computed when it is read
    judged: Judged  # for `carried.left_by`; computed when it is read

    @property
    def violations(self) -> int:
        """Number of findings that are violations."""
        return sum(self.kinds.get(kind, 0) for kind in VIOLATIONS)


@contextmanager
def audited(
    facts: DataFrame,
    bounds: Bounds,
    *,
    progress: Callable[[str], None] = lambda _: None,
    find_others: Callable[[], OtherInstallations] = OtherInstallations,
    carried: Carried | None = None,
) -> Iterator[Audit]:
    """Yield the audit of all topics' FACTS. Its findings can be read only within the block.

    `progress` is called with each line of progress. `find_others` is called only if there are real
    records whose transaction is not in this installation's half topic. With `carried`, `facts` are
    those that earlier runs have not read, and the audit is of all.
    """
    records = bounds.snapshot.records()
    with keeping() as keep, for_few(facts.sparkSession, records, few=FEW_RECORDS):
        yield _audit(facts, bounds, keep, progress, find_others=find_others, carried=carried)


def _audit(
    facts: DataFrame,
    bounds: Bounds,
    keep: Callable[[DataFrame], DataFrame],
    progress: Callable[[str], None],
    *,
    find_others: Callable[[], OtherInstallations],
    carried: Carried | None,
) -> Audit:
    compute = keep if carried is None else computed
    facts = compute(facts)
    types: Counter[int] = counted(facts, "record_type")
    records = Counter({columns.NAMES[each]: number for each, number in types.items()})
    count = records.total()
    progress(f"read {count:,} records")
    revived = None
    if carried is not None:
        revived = revive(facts, count, carried)
        progress(f"{revived.still_settled.total():,} transactions are settled")
        facts = compute(columns.all_facts(facts, carried.open_facts, revived.facts))
        count = facts.count()
        records += Counter(carried.records)
    settled = Counter(revived.still_settled if revived else ())
    sifted = compute(sift(facts, bounds))
    by_state: Counter[str | None] = counted(sifted, "state")
    examined_count = by_state.pop(None, 0)
    states = Counter({state: number for state, number in by_state.items() if state})
    owned, of_others = None, settled.pop(OF_OTHERS, 0)
    if without_half := states.pop(WITHOUT_HALF, 0):
        bounds, owned = _with_others(bounds, sifted, without_half, find_others(), keep)
        if owned is not None:
            without_half -= (owned_count := owned.count())
            of_others += owned_count
            progress(f"{owned_count:,} transactions of other installations")
        examined_count += without_half
    progress(f"{states.total():,} plain transactions, {examined_count:,} to examine")
    deliveries = sifted.where(F.col("state") == DELIVERED).select(*DELIVERY_PLACES)
    examined = None
    if examined_count:
        suspicious = suspects(facts, sifted, examined_count, owned)
        examined = _examined(suspicious, bounds)
        states.update(examined.states)
        progress(f"{examined_count:,} transactions examined")
        deliveries = deliveries.unionAll(examined.deliveries)
    if revived is None:
        disordered = reordered(deliveries)
    else:
        disordered = all_reordered(deliveries, count, revived, bounds)
    disordered = compute(disordered)
    found = out_of_order(disordered, bounds)
    if examined is not None:
        found = found.unionAll(examined.findings)
    if any(
        records.get(columns.NAMES[each])
        for each in (columns.IS_UNREADABLE_HALF, columns.IS_UNREADABLE_OP)
    ):
        found = found.unionAll(unreadable_without_dead_letter(facts, bounds))
    found = keep(found)  # before the sort, which computes its input twice
    kinds: Counter[str] = counted(found, "kind")
    states.update(settled)
    return Audit(
        dict(records),
        dict(states),
        examined_count,
        of_others,
        bounds,
        dict(kinds),
        _violations_first(found),
        Judged(facts, count, sifted, disordered, revived, owned, examined),
    )


def _with_others(
    bounds: Bounds,
    sifted: DataFrame,
    without_half: int,
    others: OtherInstallations,
    keep: Callable[[DataFrame], DataFrame],
) -> tuple[Bounds, DataFrame | None]:
    """Return the bounds with the topics of `others`, and the ids of transactions of theirs.

    Those are some of the `without_half` transactions in `sifted` whose state is WITHOUT_HALF.
    """
    topic_ids = {**bounds.snapshot.topic_ids, **others.topic_ids}
    snapshot = replace(bounds.snapshot, others=others.ranges, topic_ids=topic_ids)
    bounds = replace(bounds, snapshot=snapshot)
    if others.ids is None:
        return bounds, None
    ids = sifted.where(F.col("state") == WITHOUT_HALF).select("transaction_id")
    # Their half topics may be far larger than this one.
    return bounds, keep(of_transactions(others.ids, ids, without_half).distinct())


def _examined(suspicious: DataFrame, bounds: Bounds) -> Examined:
    """Judge the FACTS of transactions that are not plain."""
    suspicious = computed(suspicious)
    with for_few(suspicious.sparkSession, suspicious.count()) as are_few:
        suspicious = suspicious.coalesce(1) if are_few else suspicious
        ruling = rule(suspicious, bounds)
        matched = match(suspicious, ruling.messages)
        verdicts = judge(matched, bounds)
        messages = verdicts.messages
        arrived = (F.col("required") == DELIVER) & (F.col("outcome") == DELIVERED)
        more = messages.withColumn("topic_number", bounds.topic_number(F.col("real_topic")))
        found = computed(all_findings(ruling, matched, verdicts, bounds))
        found_lives = lives(messages)
        return Examined(
            found,
            more.where(arrived).select(*DELIVERY_PLACES),
            found_lives,
            counted(found_lives, "state"),
            unsettled(ruling, verdicts, found),
        )


def _violations_first(found: DataFrame) -> DataFrame:
    is_notice = (~F.col("kind").isin(*VIOLATIONS)).cast("int")
    return found.orderBy(is_notice, "kind", "transaction_id", "topic", "partition", "offset")


_COMMITTED = (DELIVERED, REFUSED, PENDING, ELSEWHERE, MISSING, EXPIRED)


class OthersReport(TypedDict):
    """What the report says of other installations."""

    half_topics: list[str]
    transactions: int


class Report(TypedDict):
    """The report of an audit."""

    clean: bool
    violations: int
    findings_by_kind: dict[str, int]
    # State -> number of transactions; under "committed" the same of the committed ones.
    transactions: dict[str, int | dict[str, int]]
    records: dict[str, int]
    looked_at: int
    other_installations: OthersReport
    findings: list[Mapping[str, object]]
    findings_left_out: int
    hidden_by_open_kafka_txn: list[str]
    missing_real_topics: list[str]
    deleted_until_ms: dict[str, int | None]
    settings: dict[str, int | bool]
    seconds: float
    snapshot: dict[str, object]


def make_report(
    audit: Audit, findings: Sequence[Mapping[str, object]], *, seconds: float
) -> Report:
    """Return the report with the `findings` to show; `audit.kinds` counts all findings."""
    bounds = audit.bounds
    states = dict(audit.states)
    rest = {name: states.pop(name, 0) for name in (ROLLED_BACK, DISCARDED, UNDECIDED)}
    committed = {name: states.pop(name, 0) for name in _COMMITTED if name != EXPIRED}
    expired = states.pop(EXPIRED, 0)
    total = sum(audit.states.values())
    return {
        "clean": audit.violations == 0,
        "violations": audit.violations,
        "findings_by_kind": {kind: audit.kinds.get(kind, 0) for kind in (*VIOLATIONS, *NOTICES)},
        "transactions": {
            "all": total,
            "committed": {"all": sum(committed.values()), **committed},
            **rest,
            EXPIRED: expired,
            **states,
        },
        "records": audit.records,
        "looked_at": audit.examined,
        "other_installations": {
            "half_topics": sorted(bounds.snapshot.others),
            "transactions": audit.of_others,
        },
        "findings": list(findings),
        "findings_left_out": sum(audit.kinds.values()) - len(findings),
        "hidden_by_open_kafka_txn": list(bounds.snapshot.hidden),
        "missing_real_topics": list(bounds.snapshot.gone),
        "deleted_until_ms": _deleted_until(bounds.snapshot),
        "settings": {"grace_ms": bounds.grace_ms, "may_repeat": bounds.may_repeat},
        "seconds": round(seconds, 1),
        "snapshot": bounds.snapshot.as_json(),
    }


def _deleted_until(snapshot: Snapshot) -> dict[str, int | None]:
    """Return topic -> append time up to which records may be deleted; None: of any time."""
    found = {topic: snapshot.cut_until_ms(topic) for topic in sorted(snapshot.topics)}
    return {
        topic: None if until >= NOTHING_LEFT_MS else until
        for topic, until in found.items()
        if until >= 0
    }


def _deleted_line(topic: str, until: int | None, *, what: str) -> str:
    if until is None:
        return f"a partition of {topic} was emptied: {what} is called lost"
    time = datetime.fromtimestamp(until / MS_PER_S, timezone.utc).isoformat(timespec="seconds")
    return f"records of {topic} up to {time} were deleted: {what} that is as old is called lost"


def text_lines(report: Report) -> Iterator[str]:
    """Yield the lines of the report as text; the findings come first, the verdict last."""
    for each in report["findings"]:
        place = f"{each['topic']}[{each['partition']}]@{each['offset']}"
        yield f"{each['kind']:<9}  {each['transaction_id'] or '-'}  {place}: {each['detail']}"
    if report["findings_left_out"]:
        yield f"... and {report['findings_left_out']:,} more (--findings PATH writes them all)"
    transactions = report["transactions"]
    committed = cast("dict[str, int]", transactions["committed"])
    arrived = ", ".join(
        f"{count:,} {name}" for name, count in committed.items() if name != "all" and count
    )
    yield (
        f"transactions: {transactions['all']:,}: {committed['all']:,} committed"
        f" ({arrived or 'none'}), {transactions[ROLLED_BACK]:,} rolled back,"
        f" {transactions[DISCARDED]:,} discarded, {transactions[UNDECIDED]:,} undecided"
        + (f", {transactions[EXPIRED]:,} expired" if transactions[EXPIRED] else "")
    )
    records = ", ".join(f"{count:,} {name}" for name, count in sorted(report["records"].items()))
    yield f"records: {records or 'none'}"
    others = report["other_installations"]
    if others["transactions"]:
        yield (
            f"{others['transactions']:,} transactions in the real topics are of other"
            " installations, whose own audits judge them"
        )
    for topic in report["hidden_by_open_kafka_txn"]:
        yield f"an open kafka_txn hides rows of {topic}: missing rows of it are not reported"
    for topic in report["missing_real_topics"]:
        yield f"real topic {topic} does not exist: deliveries to it are not judged"
    dead = TopicNames(str(report["snapshot"]["prefix"])).dead
    for topic, until in report["deleted_until_ms"].items():
        # A deleted dead letter may have been that of any missing message.
        yield _deleted_line(topic, until, what="nothing" if topic == dead else "nothing of it")
    notices = sum(report["findings_by_kind"][kind] for kind in NOTICES)
    verdict = "clean" if report["clean"] else f"{report['violations']:,} violations"
    yield f"{verdict}{f', {notices:,} notices' if notices else ''} ({report['seconds']:g} s)"
