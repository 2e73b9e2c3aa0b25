"""What is known of real topics, and what is refused without a try."""

from __future__ import annotations

import pytest

from checker.core.events import HalfRead
from checker.core.plan import Delivery
from checker.routes import (
    MISSING_TOPICS_MAX,
    PARTITION_DOUBT_MS,
    PARTITION_NEW_MS,
    REFUSED_TOPIC_MS,
    REFUSED_TRANSACTIONS_MAX,
    Routes,
)
from serde.records import HalfMetadata

GONE_MS = 1000


def _delivery(topic: str, partition: int = -1, transaction_id: str = "t") -> Delivery:
    metadata = HalfMetadata(transaction_id, 0, 0, 0, "g", topic, partition, 0, -1, -1, -1)
    half = HalfRead(0, 0, metadata, "", 0, None)
    return Delivery(transaction_id, "g", (half,), 0, 0, 0, 0)


@pytest.fixture
def routes() -> Routes:
    """Routes that know one topic of three partitions."""
    made = Routes(GONE_MS)
    made.update({"orders": 3}, 0)
    return made


@pytest.mark.parametrize("partition", [-1, 0, 2])
def test_what_exists_is_not_refused(routes: Routes, partition: int) -> None:
    """By key, or to a partition that the topic has."""
    assert routes.refusal(_delivery("orders", partition)) == ""


@pytest.mark.parametrize("partition", [3, 2**31 - 1, -2, -(2**31)])
def test_partitions_that_do_not_exist_are_refused(routes: Routes, partition: int) -> None:
    """Without asking a broker, which would fail the whole batch."""
    assert f"no partition {partition}" in routes.refusal(_delivery("orders", partition))


def test_a_missing_topic_is_awaited_then_given_up(routes: Routes) -> None:
    """For gone_ms from the first time that it was missed; it starts anew once it was there."""
    late = [_delivery("late")]
    assert routes.awaited(late, 100) == ["late"]
    assert routes.awaited(late, 100 + GONE_MS - 1) == ["late"]
    assert routes.awaited(late, 100 + GONE_MS) == []
    assert "does not exist" in routes.refusal(late[0])

    routes.update({"orders": 3, "late": 1}, 5000)
    assert routes.refusal(late[0]) == ""
    routes.update({"orders": 3}, 6000)
    assert routes.awaited(late, 6000) == ["late"]


def test_a_partition_may_be_new(routes: Routes) -> None:
    """It is waited for for a moment, once for each number of partitions that is known."""
    new = [_delivery("orders", 4)]
    assert routes.awaited(new, 100) == ["orders"]
    assert routes.awaited([_delivery("orders", 2)], 100) == []
    routes.update({"orders": 3}, 200)
    assert routes.awaited(new, 100 + PARTITION_NEW_MS - 1) == ["orders"]
    assert routes.awaited(new, 100 + PARTITION_NEW_MS) == []
    assert "no partition 4" in routes.refusal(new[0])
    assert routes.awaited([_delivery("orders", 5)], 100 + PARTITION_NEW_MS) == []

    routes.update({"orders": 4}, 9000)
    assert routes.awaited(new, 9000) == ["orders"]
    routes.update({"orders": 5}, 9100)
    assert routes.awaited(new, 9100) == []
    assert routes.refusal(new[0]) == ""


def test_missing_topics_that_are_remembered_are_bounded(routes: Routes) -> None:
    """Whoever names ever new ones makes nobody wait for ever; those given up make room."""
    names = sorted(f"other-{number}" for number in range(MISSING_TOPICS_MAX + 1))
    several = [_delivery(name) for name in names]
    assert len(routes.awaited(several, 0)) == MISSING_TOPICS_MAX
    assert routes.awaited([_delivery("late")], GONE_MS - 1) == []
    assert routes.awaited(several, GONE_MS) == names[-1:]


def test_a_number_is_doubted_anew_after_a_while(routes: Routes) -> None:
    """The topic may have grown since somebody named a number that it never had."""
    wrong = [_delivery("orders", 999)]
    assert routes.awaited(wrong, 0) == ["orders"]
    routes.update({"orders": 3}, PARTITION_DOUBT_MS - 1)
    assert routes.awaited(wrong, PARTITION_DOUBT_MS - 1) == []
    routes.update({"orders": 3}, PARTITION_DOUBT_MS)
    assert routes.awaited([_delivery("orders", 3)], PARTITION_DOUBT_MS) == ["orders"]


@pytest.mark.parametrize(
    ("topic", "partition", "lacks"),
    [("orders", -1, False), ("orders", 2, False), ("orders", 3, True), ("none", -1, True)],
)
def test_what_is_lacking_is_looked_for(
    routes: Routes, topic: str, partition: int, *, lacks: bool
) -> None:
    """Whether it is still waited for or not."""
    assert routes.lacks([_delivery("orders"), _delivery(topic, partition)]) == lacks


def test_a_topic_is_refused_for_a_while(routes: Routes) -> None:
    """A right that was taken away may come back: it is tried again."""
    routes.refuse_topic("orders", "no right", 0)
    assert routes.has_refused_topics
    assert routes.refusal(_delivery("orders")) == "no right"

    routes.update({"orders": 3}, REFUSED_TOPIC_MS)

    assert routes.refusal(_delivery("orders")) == ""
    assert not routes.has_refused_topics


def test_another_decision_under_the_same_id_is_not_refused(routes: Routes) -> None:
    """Another group's, or the next one of a transaction that was resumed."""
    refused = _delivery("orders")
    routes.refuse(refused, "too large")
    assert routes.refusal(refused) == "too large"
    assert routes.refusal(refused._replace(op_offset=1)) == ""


def test_a_transaction_stays_refused(routes: Routes) -> None:
    """Until it was decided again; the oldest are forgotten beyond a bound."""
    routes.refuse(_delivery("orders"), "too large")
    for number in range(REFUSED_TRANSACTIONS_MAX - 1):
        routes.refuse(_delivery("orders", transaction_id=f"other-{number}"), "too large")
    assert routes.refusal(_delivery("orders")) == "too large"
    assert routes.refusal(_delivery("orders", transaction_id="another")) == ""

    routes.refuse(_delivery("orders", transaction_id="one more"), "too large")

    assert routes.refusal(_delivery("orders")) == ""
