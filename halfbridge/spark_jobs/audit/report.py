"""The report of an audit, as one JSON object and as a few lines of text. Pure."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from halfbridge.serde.topics import TopicNames
from halfbridge.serde.units import MS_PER_S
from halfbridge.spark_jobs.audit.finding import NOTICES, VIOLATIONS
from halfbridge.spark_jobs.audit.sift import (
    DELIVERED,
    DISCARDED,
    EXPIRED,
    PENDING,
    REFUSED,
    ROLLED_BACK,
    UNDECIDED,
)
from halfbridge.spark_jobs.audit.verdict import ELSEWHERE, MISSING
from halfbridge.spark_jobs.reading.snapshot import NOTHING_LEFT_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfbridge.spark_jobs.audit.run import Audit
    from halfbridge.spark_jobs.reading.snapshot import Snapshot

_COMMITTED = (DELIVERED, REFUSED, PENDING, ELSEWHERE, MISSING, EXPIRED)


def make_report(
    audit: Audit, findings: Sequence[Mapping[str, Any]], *, seconds: float
) -> dict[str, Any]:
    """Return the report.

    Args:
        audit: The audit's result.
        findings: The findings to show; `audit.kinds` counts all findings.
        seconds: How long the audit took.
    """
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
        "looked_at": audit.looked_at,
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


def text_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report as text; the findings come first, the verdict last."""
    for each in report["findings"]:
        place = f"{each['topic']}[{each['partition']}]@{each['offset']}"
        yield f"{each['kind']:<9}  {each['transaction_id'] or '-'}  {place}: {each['detail']}"
    if report["findings_left_out"]:
        yield f"... and {report['findings_left_out']:,} more (--findings PATH writes them all)"
    transactions = dict(report["transactions"])
    committed = dict(transactions["committed"])
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
        yield f"an open kafka_txn hides rows of {topic}: nothing is said of what is missing there"
    for topic in report["missing_real_topics"]:
        yield f"real topic {topic} does not exist: nothing is said of what was sent to it"
    dead = TopicNames(report["snapshot"]["prefix"]).dead
    for topic, until in report["deleted_until_ms"].items():
        # A deleted dead letter may have been that of any missing message.
        yield _deleted_line(topic, until, what="nothing" if topic == dead else "nothing of it")
    notices = sum(report["findings_by_kind"][kind] for kind in NOTICES)
    verdict = "clean" if report["clean"] else f"{report['violations']:,} violations"
    yield f"{verdict}{f', {notices:,} notices' if notices else ''} ({report['seconds']:g} s)"
