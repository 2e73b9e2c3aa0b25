"""The demo's plan, and what it makes of a run."""

from collections import Counter
from dataclasses import replace

import pytest

from halfbridge.demo import SERVICES, TOPICS, Kind, make_plan, report
from halfbridge.testkit.history import Anomaly, ClientTransaction, Finding, Verdict

PLAN = make_plan(20)


@pytest.mark.parametrize("orders", [10, 37, 2000])
def test_every_kind_is_there(orders: int) -> None:
    """A plan has as many orders as asked for, the same each time, and each kind at least once."""
    plan = make_plan(orders)

    assert [order.number for order in plan] == list(range(orders))
    assert {order.kind for order in plan} == set(Kind)
    assert make_plan(orders) == plan


def test_all_services_but_the_last_are_killed() -> None:
    """Each service but the last has orders between local commit and decision when it is killed."""
    killed = Counter(order.service for order in make_plan(2000) if order.kind is Kind.KILLED)
    assert set(killed) == set(range(SERVICES - 1))


def test_messages_are_unique_and_keyed_by_customer() -> None:
    """Each value exists once; a multi order has three messages in two topics."""
    plan = make_plan(2000)
    values = Counter(message.value for order in plan for message in order.messages)
    multi = next(order for order in plan if order.kind is Kind.MULTI)

    assert max(values.values()) == 1
    assert [message.topic for message in multi.messages] == [TOPICS[0], TOPICS[1], TOPICS[1]]
    assert len({message.key for message in multi.messages}) == 1


CLIENTS = [
    ClientTransaction(
        transaction_id=str(order.number),
        producer_group="g",
        messages=(),
        claims=(),
        label=order.kind.value,
    )
    for order in PLAN
]
PERFECT = Verdict(
    (),
    {
        str(order.number): len(order.messages)
        for order in PLAN
        if order.kind not in (Kind.UNKNOWN, Kind.ROLLED_BACK, Kind.ABANDONED)
    },
    {str(order.number): 1 for order in PLAN if order.kind is Kind.UNKNOWN},
)


def test_a_good_run() -> None:
    """Every kind has what the plan expects; the keys are the promised ones."""
    found = report(PLAN, CLIENTS, PERFECT)

    assert list(found) == ["ok", "kinds", "duplicates", "lost", "out_of_order"]
    assert list(found["kinds"]) == [kind.value for kind in Kind]
    assert (found["ok"], found["lost"]) == (True, 0)
    assert found["kinds"]["unknown"]["dead_lettered"] == found["kinds"]["unknown"]["expected"] > 0


def test_a_missing_message_is_lost() -> None:
    """A message that came out nowhere counts as lost, whatever the judge found."""
    delivered = dict(PERFECT.delivered)
    delivered.popitem()
    found = report(PLAN, CLIENTS, replace(PERFECT, delivered=delivered))
    assert not found["ok"]
    assert found["lost"] >= 1


def test_a_finding_fails_the_run() -> None:
    """Any finding of the judge fails the run, and is counted under its name."""
    findings = (Finding(Anomaly.REORDERED, "1", ""), Finding(Anomaly.DUPLICATED, "1", ""))
    found = report(PLAN, CLIENTS, replace(PERFECT, findings=findings))
    assert (found["ok"], found["duplicates"], found["out_of_order"]) == (False, 1, 1)
