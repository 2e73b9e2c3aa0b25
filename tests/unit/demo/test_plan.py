"""The demo's plan holds every kind of order and says what must come out."""

from __future__ import annotations

from collections import Counter

import pytest

from halfbridge.demo.plan import (
    MULTI_MESSAGES,
    ORDERS_MIN,
    SERVICES,
    TOPICS,
    Expectation,
    Kind,
    expectations,
    make_plan,
)


@pytest.mark.parametrize("orders", [ORDERS_MIN, 37, 2000])
def test_every_kind_is_there(orders: int) -> None:
    """A plan has as many orders as asked for, unique ones, and each kind at least once."""
    plan = make_plan(orders)

    assert [order.number for order in plan] == list(range(orders))
    assert {order.kind for order in plan} == set(Kind)


def test_all_services_but_the_last_are_killed() -> None:
    """Killed orders end each service's share, and the last service has none."""
    plan = make_plan(2000)

    for service in range(SERVICES):
        kinds = [order.kind for order in plan if order.service == service]
        killed = kinds.count(Kind.KILLED)
        assert (killed > 0) == (service < SERVICES - 1)
        assert kinds[len(kinds) - killed :] == [Kind.KILLED] * killed


def test_plan_is_the_same_each_time() -> None:
    """A service that is started anew finds the same orders."""
    assert make_plan(100) == make_plan(100)


def test_too_few_orders() -> None:
    """Fewer orders than kinds need are refused."""
    with pytest.raises(ValueError, match="at least 10"):
        make_plan(ORDERS_MIN - 1)


def test_messages_are_unique_and_keyed_by_customer() -> None:
    """Each value exists once; an order's messages share its customer's key."""
    plan = make_plan(2000)
    values = Counter(value for order in plan for _, _, value in order.messages)

    assert max(values.values()) == 1
    assert {(topic, key) for order in plan for topic, key, _ in order.messages} <= {
        (topic, order.customer.encode()) for order in plan for topic in TOPICS
    }


def test_multi_orders_span_two_topics() -> None:
    """A multi order has three messages in two topics."""
    order = next(order for order in make_plan(100) if order.kind is Kind.MULTI)

    assert len(order.messages) == MULTI_MESSAGES
    assert {topic for topic, _, _ in order.messages} == set(TOPICS)


def test_expectations() -> None:
    """Rolled-back and abandoned orders yield nothing, unknown ones dead letters, others all."""
    plan = make_plan(100)
    counts = Counter(order.kind for order in plan)

    assert expectations(plan) == {
        Kind.COMMITTED: Expectation(counts[Kind.COMMITTED], 0),
        Kind.ROLLED_BACK: Expectation(0, 0),
        Kind.KILLED: Expectation(counts[Kind.KILLED], 0),
        Kind.ABANDONED: Expectation(0, 0),
        Kind.UNKNOWN: Expectation(0, counts[Kind.UNKNOWN]),
        Kind.MULTI: Expectation(counts[Kind.MULTI] * MULTI_MESSAGES, 0),
    }
