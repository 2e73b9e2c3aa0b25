"""What the daemon does when the settings of its topics are not what it relies on."""

import logging

import pytest

from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker
DAY_MS = 24 * 3_600_000


@pytest.fixture(autouse=True)
def fast_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are asked for twice a second, not every few minutes."""
    monkeypatch.setattr("halfbridge.checker.loop.topic_watch.SETTINGS_POLL_S", 0.5)
    monkeypatch.setattr("halfbridge.checker.loop.topic_watch.FLAWED_S", 0.5)
    monkeypatch.setattr("halfbridge.checker.loop.topic_watch.NEW_S", 0.1)


@pytest.mark.parametrize(
    "change",
    [
        ("message.timestamp.type", "CreateTime", "LogAppendTime"),
        ("cleanup.policy", "compact,delete", "delete"),
    ],
)
@pytest.mark.parametrize("is_half", [True, False])
def test_untrue_topic_stops_all_pairs_until_it_is_mended(
    installation: Installation,
    caplog: pytest.LogCaptureFixture,
    change: tuple[str, str, str],
    *,
    is_half: bool,
) -> None:
    """One line says what is wrong and the command; the worker resumes by itself afterwards."""
    setting, wrong, right = change
    installation.make(partitions=2)
    orders = installation.topic("orders")
    names = installation.names
    topic = names.half if is_half else names.op
    daemon = installation.start()
    installation.await_marker()

    installation.alter(topic, **{setting.replace(".", "_"): wrong})
    text = daemon.stopped(0)
    assert daemon.stopped(1) == text
    assert topic in text
    assert f"{setting} is {wrong}" in text
    assert f" {topic} --set {setting}={right}" in text
    status, body = daemon.healthz()
    assert (status, body["ready"], body["reason"]) == (503, False, text)
    assert daemon.metric("halfbridge_partitions_stopped") == 2
    assert daemon.metric("halfbridge_topic_settings_wrong", topic=topic, setting=setting) == 1
    late = installation.half(orders, partition=1)
    installation.commit(late)

    installation.alter(topic, **{setting.replace(".", "_"): right})
    (record,) = installation.tail(orders).until(1)
    assert record.transaction_id == late.transaction_id
    until("all is well", lambda: daemon.healthz()[0] == 200)
    assert daemon.metric("halfbridge_partitions_stopped") == 0
    assert daemon.metric("halfbridge_topic_settings_wrong") == 0
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    until_then = "Nothing is delivered until the settings are corrected; then all partitions resume"
    assert said == [f"all partitions stopped: {text}. {until_then}"]


def test_a_worker_does_not_start_on_an_untrue_topic(installation: Installation) -> None:
    """What was written before anybody looked is not read either."""
    installation.make()
    orders = installation.topic("orders")
    installation.alter(installation.names.half, message_timestamp_type="CreateTime")
    half = installation.pass_through(orders)
    daemon = installation.launch()
    assert "message.timestamp.type is CreateTime" in daemon.stopped(0)
    assert installation.tail(orders).to_end() == []

    installation.alter(installation.names.half, message_timestamp_type="LogAppendTime")
    (record,) = installation.tail(orders).until(1)
    assert record.transaction_id == half.transaction_id


def test_retention_and_sizes_alarm_and_stop_nothing(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """Health, metric and log name them while they are wrong."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    names = installation.names
    daemon = installation.start(transaction_age_ms_max=DAY_MS)
    installation.alter(names.op, retention_ms=str(DAY_MS))
    installation.alter(names.half, max_message_bytes="2000000")
    wrong = [
        (names.op, "retention.ms"),
        (names.dead, "max.message.bytes"),
        (names.check(GROUP), "max.message.bytes"),
    ]

    for topic, setting in wrong:
        daemon.counts("halfbridge_topic_settings_wrong", 1, topic=topic, setting=setting)
    until("health is red", lambda: daemon.healthz()[0] == 503)
    reason = daemon.healthz()[1]["reason"]
    assert all(f"{topic}: {setting} is" in reason for topic, setting in wrong)
    half = installation.pass_through(orders)
    (record,) = installation.tail(orders).until(1)
    assert record.transaction_id == half.transaction_id
    assert daemon.healthz()[1]["ready"]
    assert sum(reason in each.getMessage() for each in caplog.records) == 1

    for topic, setting in wrong:
        value = str(7 * DAY_MS if setting == "retention.ms" else 3_000_000)
        installation.alter(topic, **{setting.replace(".", "_"): value})
    until("health is green", lambda: daemon.healthz()[0] == 200)
    assert daemon.metric("halfbridge_topic_settings_wrong") == 0
