"""Knowledge of real topics, and deliveries that are refused without an attempt."""

from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from halfbridge.checker.core.deferred import AWAY_MS_MIN, PARTITION_NEW_MS
from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.plan import Delivery
from halfbridge.checker.loop.routes import (
    BLAMED_MS,
    LOST_MS,
    PARTITION_DOUBT_MS,
    REFRESH_STEP_MS_MAX,
    REFUSED_TOPIC_MS,
    REFUSED_TRANSACTIONS_MAX,
    Routes,
)
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.partitioner import Partitioner, partition_of
from halfbridge.serde.records import PARTITION_BY_KEY, new_half

GONE_MS = 1000


def _delivery(topic: str, partition: int = -1, transaction_id: str = "t") -> Delivery:
    metadata = new_half(
        transaction_id=transaction_id,
        born_timestamp=0,
        producer_group="g",
        real_topic=topic,
        real_partition=partition,
    )
    half = HalfRead(0, 0, metadata, "", 0, None)
    return Delivery(transaction_id, "g", (half,), 0, 0, 0, 0)


def _seen(partitions: dict[str, int]) -> dict[str, SeenTopic]:
    return {name: SeenTopic(count, 1) for name, count in partitions.items()}


@pytest.fixture
def routes() -> Routes:
    """Routes with one topic of three partitions."""
    made = Routes(GONE_MS)
    made.update(_seen({"orders": 3}), 0)
    return made


@pytest.mark.parametrize("partition", [-1, 0, 2])
def test_what_exists_is_not_refused(routes: Routes, partition: int) -> None:
    """A message by key, or to an existing partition, is not refused."""
    assert routes.refusal(_delivery("orders", partition)) == ""


@pytest.mark.parametrize("partition", [3, 2**31 - 1, -2, -(2**31)])
def test_partitions_that_do_not_exist_are_refused(routes: Routes, partition: int) -> None:
    """A partition that does not exist is refused without a request, which would fail the batch."""
    assert f"no partition {partition}" in routes.refusal(_delivery("orders", partition))


def _limits(routes: Routes, deliveries: list[Delivery], now_ms: int) -> list[int]:
    messages = [half for one in deliveries for half in one.messages]
    routes.doubt(routes.too_few(messages), now_ms)
    return [lack.limit_ms for lack in routes.lacks(messages, now_ms)]


def _waits(routes: Routes, delivery: Delivery, op_age_ms: int, now_ms: int) -> bool:
    return routes.must_wait(delivery.messages, op_age_ms, now_ms)


def test_a_missing_topic_is_worth_waiting_for(routes: Routes) -> None:
    """A missing topic is waited for for gone_ms, again when it is deleted later."""
    late = [_delivery("late")]
    assert _limits(routes, [*late, _delivery("orders")], 100) == [GONE_MS]
    assert "does not exist" in routes.refusal(late[0])

    routes.update(_seen({"orders": 3, "late": 1}), 5000)
    assert _limits(routes, late, 5000) == []
    assert routes.refusal(late[0]) == ""
    routes.update(_seen({"orders": 3}), 6000)
    assert _limits(routes, late, 6000) == [GONE_MS]


def test_a_topic_that_was_there_a_moment_ago_is_not_given_up_at_once(routes: Routes) -> None:
    """A topic that existed is waited for for LOST_MS more; one that never did is not."""
    orders, hour_ms = _delivery("orders"), 3_600_000
    assert not _waits(routes, _delivery("never was"), hour_ms, 500)
    routes.update(_seen({}), 1000)
    assert _waits(routes, orders, hour_ms, 1000)
    routes.update(_seen({}), 1000 + LOST_MS - 1)
    assert _waits(routes, orders, hour_ms, 1000 + LOST_MS - 1)
    routes.update(_seen({}), 1000 + LOST_MS)
    assert not _waits(routes, orders, hour_ms, 1000 + LOST_MS)
    routes.update(_seen({"orders": 3}), 9000)
    assert not _waits(routes, orders, hour_ms, 9000)


def test_a_partition_may_be_new(routes: Routes) -> None:
    """A missing partition is waited for for PARTITION_NEW_MS, once per known partition count."""
    new = [_delivery("orders", 4)]
    assert _limits(routes, new, 100) == [PARTITION_NEW_MS]
    assert _limits(routes, [_delivery("orders", 2)], 100) == []
    routes.update(_seen({"orders": 3}), 200)
    assert _limits(routes, new, 100 + PARTITION_NEW_MS - 1) == [PARTITION_NEW_MS]
    assert _limits(routes, new, 100 + PARTITION_NEW_MS) == [0]
    assert "no partition 4" in routes.refusal(new[0])
    assert _limits(routes, [_delivery("orders", 5)], 100 + PARTITION_NEW_MS) == [0]

    routes.update(_seen({"orders": 4}), 9000)
    assert _limits(routes, new, 9000) == [PARTITION_NEW_MS]
    routes.update(_seen({"orders": 5}), 9100)
    assert _limits(routes, new, 9100) == []
    assert routes.refusal(new[0]) == ""


def test_a_name_that_no_topic_can_have_is_not_waited_for(routes: Routes) -> None:
    """A topic name of more than 249 characters, Kafka's limit, is not waited for."""
    assert _limits(routes, [_delivery("t" * 249)], 0) == [GONE_MS]
    too_long = _delivery("t" * 250)
    assert _limits(routes, [too_long], 0) == [0]
    assert "does not exist" in routes.refusal(too_long)


def test_looking_at_a_wrong_number_changes_nothing(routes: Routes) -> None:
    """must_wait does not begin the wait for a wrong partition; doubt does."""
    wrong = _delivery("orders", 999)
    for now_ms in (0, PARTITION_NEW_MS):
        assert _waits(routes, wrong, 0, now_ms)
    routes.doubt(routes.too_few(wrong.messages), 0)
    assert not _waits(routes, wrong, 0, PARTITION_NEW_MS)


def test_a_number_is_doubted_anew_after_a_while(routes: Routes) -> None:
    """After PARTITION_DOUBT_MS a missing partition is waited for again."""
    wrong = [_delivery("orders", 999)]
    assert _limits(routes, wrong, 0) == [PARTITION_NEW_MS]
    routes.update(_seen({"orders": 3}), PARTITION_DOUBT_MS - 1)
    assert _limits(routes, wrong, PARTITION_DOUBT_MS - 1) == [0]
    routes.update(_seen({"orders": 3}), PARTITION_DOUBT_MS)
    assert _limits(routes, [_delivery("orders", 3)], PARTITION_DOUBT_MS) == [PARTITION_NEW_MS]


@pytest.mark.parametrize(
    ("topic", "partition", "is_clear"),
    [("orders", -1, True), ("orders", 2, True), ("orders", 3, False), ("none", -1, False)],
)
def test_what_is_lacking_is_examined(
    routes: Routes, topic: str, partition: int, *, is_clear: bool
) -> None:
    """Routes take no messages of which a topic or partition is missing."""
    routes.tried(["orders", "none"])
    assert (
        routes.takes([*_delivery("orders").messages, *_delivery(topic, partition).messages])
        == is_clear
    )


def test_a_topic_is_examined_before_the_first_delivery(routes: Routes) -> None:
    """A topic is untried before its first delivery, and again after it was deleted."""
    messages, topics = _delivery("orders").messages, {"orders", "none"}
    assert not routes.takes(messages)
    assert routes.untried(topics) == {"orders"}
    routes.tried(["orders"])
    assert routes.takes(messages)
    assert routes.untried(topics) == set()
    routes.update(_seen({"orders": 4}), 0)
    assert routes.takes([*_delivery("orders", 3).messages])
    routes.update(_seen({}), 0)
    routes.update(_seen({"orders": 4}), 0)
    assert routes.untried(topics) == {"orders"}


def test_a_topic_is_refused_for_a_while(routes: Routes) -> None:
    """A refused topic is tried again after REFUSED_TOPIC_MS."""
    routes.tried(["orders"])
    routes.refuse_topic("orders", "is closed", 0)
    assert routes.refused_topics == ["orders"]
    assert not routes.takes(_delivery("orders").messages)
    assert routes.refusal(_delivery("orders")) == "topic orders is closed"

    routes.update(_seen({"orders": 3}), REFUSED_TOPIC_MS)

    assert routes.refusal(_delivery("orders")) == ""
    assert routes.takes(_delivery("orders").messages)
    assert not routes.refused_topics


def test_a_right_that_is_given_is_heard_of(routes: Routes) -> None:
    """allow_topic ends the refusal at once."""
    routes.refuse_topic("orders", "no right", 0)
    routes.allow_topic("orders")
    assert routes.refusal(_delivery("orders")) == ""


def _away(
    *leaderless: int, in_sync: tuple[int, ...] = (), replicas: int = 1
) -> dict[str, SeenTopic]:
    return {"orders": SeenTopic(3, replicas, frozenset(leaderless), in_sync=in_sync)}


def test_only_the_partition_without_a_leader_is_waited_for(routes: Routes) -> None:
    """Deliveries to other partitions continue; the refusal names the partition without a leader."""
    routes.tried(["orders"])
    routes.update(_away(2), 0)
    away, there = _delivery("orders", 2), _delivery("orders", 1)
    assert _waits(routes, away, 0, 0)
    assert not _waits(routes, there, 0, 0)
    assert routes.refusal(away) == "partition 2 of topic orders has no leader"
    assert routes.refusal(there) == ""
    assert not routes.takes(there.messages)  # its topic is now examined for each delivery
    routes.update(_away(), 1)
    assert routes.takes(away.messages)
    assert routes.refusal(away) == ""


def test_too_few_replicas_in_sync_are_waited_for(routes: Routes) -> None:
    """min.insync.replicas counts if known, up to the number of replicas."""
    delivery = _delivery("orders", 0)
    routes.update(_away(in_sync=(1, 2, 2), replicas=2), 0, {"orders": 2}.get)
    assert routes.refusal(delivery) == (
        "partition 0 of topic orders has 1 of 2 required replicas in sync (min.insync.replicas=2)"
    )
    routes.update(_away(in_sync=(1, 2, 2), replicas=2), 0)
    assert routes.refusal(delivery) == ""
    routes.update(_away(in_sync=(1, 1, 1)), 0, {"orders": 2}.get)
    assert routes.refusal(delivery) == ""


def test_a_wait_is_measured_by_answered_look_ups(routes: Routes) -> None:
    """Time without an answered refresh counts as REFRESH_STEP_MS_MAX of the wait at most."""
    away, hour_ms = _delivery("orders", 2), 3_600_000
    routes.update(_away(2), 0)
    routes.update(_away(2), hour_ms)  # no refresh was answered for an hour
    now_ms, steps = hour_ms, AWAY_MS_MIN // REFRESH_STEP_MS_MAX
    for _ in range(1, steps):
        assert _waits(routes, away, hour_ms, now_ms)
        now_ms += REFRESH_STEP_MS_MAX
        routes.update(_away(2), now_ms)
    assert not _waits(routes, away, hour_ms, now_ms)


def test_a_partition_that_took_no_record_is_left_alone_for_longer_and_longer(
    routes: Routes,
) -> None:
    """The pause after each failed attempt doubles, until the partition was well for a while."""
    place, delivery, now_ms = ("orders", 1), _delivery("orders", 1), 0
    for pause_ms in (BLAMED_MS, 2 * BLAMED_MS, 4 * BLAMED_MS):
        routes.blame(place, "took no record: timed out", now_ms)
        routes.update(_away(), now_ms + pause_ms - 1)
        assert "took no record: timed out" in routes.refusal(delivery)
        now_ms += pause_ms
        routes.update(_away(), now_ms)
        assert routes.refusal(delivery) == ""
    routes.update(_away(), now_ms + 4 * BLAMED_MS)
    routes.blame(place, "again", now_ms + 5 * BLAMED_MS)
    routes.update(_away(), now_ms + 6 * BLAMED_MS)
    assert routes.refusal(delivery) == ""


def test_a_silent_partition_is_tried_once_more_before_it_is_given_up(routes: Routes) -> None:
    """A delivery over its limit is given up only after one more attempt at the silent partition."""
    place, delivery, hour_ms = ("orders", 1), _delivery("orders", 1), 3_600_000
    now_ms = 0
    for _ in range(3):  # pauses of 5, 10 and 20 s: the limit of 30 s is within the third
        routes.blame(place, "silent", now_ms)
        while routes.refusal(delivery) and _waits(routes, delivery, hour_ms, now_ms):
            now_ms += REFRESH_STEP_MS_MAX
            routes.update(_away(), now_ms)
    assert routes.refusal(delivery) == ""
    assert not _waits(routes, delivery, hour_ms, now_ms)  # it is written to
    routes.blame(place, "silent", now_ms)
    assert "silent" in routes.refusal(delivery)
    assert not _waits(routes, delivery, hour_ms, now_ms)  # now it is given up


def test_a_message_with_a_key_waits_for_its_own_partition(routes: Routes) -> None:
    """A message waits if its key's partition is offline, or if its body is not in memory."""
    routes.update(_away(2), 0)
    keys = [f"key-{number}".encode() for number in range(20)]
    for key in (*keys, None):
        body = SimpleNamespace(key=lambda key=key: key)
        (half,) = _delivery("orders").messages
        is_away = key is not None and partition_of(key, 3) == 2
        assert routes.must_wait([half._replace(body=body)], 0, 0) == is_away
        assert routes.must_wait([half], 0, 0)
        if key is None:
            assert routes.place(half.metadata, None) in (0, 1)


def test_another_decision_under_the_same_id_is_not_refused(routes: Routes) -> None:
    """A refusal is for one op offset, not for a later decision with the same id."""
    refused = _delivery("orders")
    routes.refuse(refused, "too large")
    assert routes.refusal(refused) == "too large"
    assert routes.refusal(refused._replace(op_offset=1)) == ""


def test_a_transaction_stays_refused(routes: Routes) -> None:
    """A transaction stays refused; beyond REFUSED_TRANSACTIONS_MAX the oldest is forgotten."""
    routes.refuse(_delivery("orders"), "too large")
    for number in range(REFUSED_TRANSACTIONS_MAX - 1):
        routes.refuse(_delivery("orders", transaction_id=f"other-{number}"), "too large")
    assert routes.refusal(_delivery("orders")) == "too large"
    assert routes.refusal(_delivery("orders", transaction_id="another")) == ""

    routes.refuse(_delivery("orders", transaction_id="one more"), "too large")

    assert routes.refusal(_delivery("orders")) == ""


def _placed(routes: Routes, key: bytes | None, **given: Any) -> int:
    (half,) = _delivery(**{"topic": "legacy", **given}).messages
    return routes.place(half.metadata, key)


@pytest.fixture
def mixed() -> Routes:
    """Routes with a topic for each partitioner."""
    by_crc = {"legacy": Partitioner.CONSISTENT_RANDOM}
    made = Routes(GONE_MS, lambda topic: by_crc.get(topic, Partitioner.MURMUR2))
    made.update(_seen({"orders": 3, "legacy": 3}), 0)
    return made


def test_keys_are_placed_by_the_topics_partitioner(mixed: Routes) -> None:
    """With consistent_random keys are placed by CRC-32; murmur2 is left to the Kafka client."""
    keys = [f"key-{number}".encode() for number in range(50)]
    assert [_placed(mixed, key) for key in keys] == [crc32(key) % 3 for key in keys]
    assert {_placed(mixed, key, topic="orders") for key in keys} == {PARTITION_BY_KEY}


def test_a_topic_that_grows_has_its_keys_placed_anew(mixed: Routes) -> None:
    """Keys are placed by the last known number of partitions."""
    mixed.update(_seen({"legacy": 30}), 1)
    assert _placed(mixed, b"key-1") == crc32(b"key-1") % 30


def test_a_message_that_names_its_partition_goes_there(mixed: Routes) -> None:
    """A message with a partition goes there, with any key."""
    assert {_placed(mixed, key, partition=2) for key in (None, b"", b"k")} == {2}


def test_without_a_key_a_message_goes_anywhere(mixed: Routes) -> None:
    """Without a key the client chooses; empty keys are spread, as librdkafka does at random."""
    assert _placed(mixed, None) == PARTITION_BY_KEY
    ids = [f"{number:032x}" for number in range(50)]
    assert {_placed(mixed, b"", transaction_id=each) for each in ids} == {0, 1, 2}
    assert _placed(mixed, b"", topic="orders") == PARTITION_BY_KEY
