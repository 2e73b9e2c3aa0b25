"""The demo's result adds up, and its JSON has exactly the promised keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfbridge.demo.display import make_table, verdict_line
from halfbridge.demo.plan import Kind, expectations, make_plan
from halfbridge.demo.result import DemoResult, make_result
from halfbridge.testkit.history import Anomaly, ClientTransaction, Finding, Verdict

PLAN = make_plan(20)


def result_of(verdict: Verdict) -> DemoResult:
    """Return the result of a run in which each order is a transaction named by its number."""
    clients = [
        ClientTransaction(
            transaction_id=str(order.number),
            producer_group="g",
            messages=(),
            claims=(),
            label=order.kind.value,
        )
        for order in PLAN
    ]
    return make_result(PLAN, clients, verdict, seconds=1.26)


@pytest.fixture
def perfect() -> Verdict:
    """Return the verdict of a run in which everything came out as it must."""
    delivered = {
        str(o.number): len(o.messages)
        for o in PLAN
        if o.kind not in (Kind.UNKNOWN, Kind.ROLLED_BACK, Kind.ABANDONED)
    }
    dead = {str(order.number): 1 for order in PLAN if order.kind is Kind.UNKNOWN}
    return Verdict((), delivered, dead)


def test_json_of_a_good_run(perfect: Verdict) -> None:
    """A good run's JSON has the promised keys and kinds, and no others."""
    found = result_of(perfect).to_json()
    totals = {kind.value: wanted.total for kind, wanted in expectations(PLAN).items()}

    assert list(found) == ["ok", "kinds", "duplicates", "lost", "out_of_order", "seconds"]
    assert {kind: row["expected"] for kind, row in found["kinds"].items()} == totals
    assert all(
        row["delivered"] + row["dead_lettered"] == row["expected"]
        for row in found["kinds"].values()
    )
    assert (found["ok"], found["lost"], found["seconds"]) == (True, 0, 1.3)


def test_missing_message_is_lost(perfect: Verdict) -> None:
    """A message that came out nowhere counts as lost, whatever the judge found."""
    delivered = dict(perfect.delivered)
    delivered.popitem()
    result = result_of(replace(perfect, delivered=delivered))

    assert not result.ok
    assert result.lost >= 1


def test_finding_fails_the_run(perfect: Verdict) -> None:
    """Any finding fails the run, and is counted under its name."""
    findings = (Finding(Anomaly.REORDERED, "1", ""), Finding(Anomaly.DUPLICATED, "1", ""))
    result = result_of(replace(perfect, findings=findings))
    found = result.to_json()

    assert (found["ok"], found["duplicates"], found["out_of_order"]) == (False, 1, 1)
    assert verdict_line(result).startswith("FAILED: 0 lost, 1 duplicated, 1 out of order")


def test_table_has_a_row_a_kind(perfect: Verdict) -> None:
    """The table shows every kind; a good run's verdict line says so."""
    result = result_of(perfect)

    assert make_table(result).row_count == len(Kind)
    assert verdict_line(result).startswith("OK: every committed message arrived exactly once")
