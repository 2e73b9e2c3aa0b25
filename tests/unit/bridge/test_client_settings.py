"""Which of the user's Kafka properties reach which client."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from halfbridge.bridge.config import (
    BridgeConfig,
    admin_properties,
    checks_properties,
    letters_properties,
    reader_properties,
    writer_properties,
)
from halfbridge.kafka.errors import ConfigError
from halfbridge.kafka.threads import SystemClock

CONFIG = BridgeConfig(
    bootstrap_servers="b:1",
    producer_group="g",
    in_flight_max=100,
    kafka={"fetch.min.bytes": "1", "session.timeout.ms": "9000", "socket.timeout.ms": "7"},
)
CLOCK = SystemClock()


def test_a_consumers_properties_reach_consumers_only() -> None:
    """A writer or an admin client would log a warning for each of them."""
    writer = writer_properties(CONFIG, CLOCK, message_bytes_max=1_000)
    for properties in (writer, admin_properties(CONFIG, CLOCK)):
        assert "fetch.min.bytes" not in properties
        assert properties["socket.timeout.ms"] == "7"
    for properties in (checks_properties(CONFIG, CLOCK), reader_properties(CONFIG, CLOCK)):
        assert properties["fetch.min.bytes"] == "1"
        assert properties["session.timeout.ms"] == "9000"


def test_a_decision_fits_behind_each_half_message() -> None:
    """The writer's queue holds twice what may be unacknowledged."""
    writer = writer_properties(CONFIG, CLOCK, message_bytes_max=1_000)
    assert writer["queue.buffering.max.messages"] == 200
    assert (writer["acks"], writer["enable.idempotence"]) == ("all", True)


def test_requests_in_flight_are_a_setting_and_keep_the_order() -> None:
    """By default as many as the client library has; no more may keep the order of repetitions."""
    properties = partial(writer_properties, clock=CLOCK, message_bytes_max=1_000)
    assert properties(CONFIG)["max.in.flight"] == 5
    assert properties(replace(CONFIG, requests_in_flight_max=2))["max.in.flight"] == 2
    with pytest.raises(ConfigError, match="requests_in_flight_max"):
        replace(CONFIG, requests_in_flight_max=6)


def test_each_group_is_its_own() -> None:
    """Whoever reads checks or letters commits in a group of theirs."""
    groups = {
        checks_properties(CONFIG, CLOCK)["group.id"],
        letters_properties(CONFIG, CLOCK)["group.id"],
    }
    assert groups == {CONFIG.names.check_group("g"), CONFIG.names.relay_group("g")}
