"""BridgeConfig: one frozen object, checked once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from time import monotonic
from typing import Any, get_type_hints

import pytest

from halfbridge.bridge.config import (
    OWNED_PROPERTIES,
    BridgeConfig,
    ClientSettings,
    admin_properties,
    checks_properties,
    letters_properties,
    read_toml,
    reader_properties,
    writer_properties,
)
from halfbridge.bridge.daemon_settings import EndAsker, differences
from halfbridge.checker.admin.transactions.waits import TOPIC_GONE_MS
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.process.settings_topic import limits_of
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import BridgeError, ConfigError, RetriableError
from halfbridge.kafka.threads import SystemClock
from halfbridge.serde.delivery import DELIVERY_LIMIT, Delivery
from halfbridge.serde.records import DaemonSettings


def _config(**given: Any) -> BridgeConfig:
    return BridgeConfig(**{"bootstrap_servers": "b:1", "producer_group": "g", **given})


def test_defaults_and_derived_names() -> None:
    """RocketMQ's defaults; names carry the prefix; immunity is at most half the age."""
    config = _config(topic_prefix="p.")
    assert (config.transaction_timeout_ms, config.transaction_age_ms_max) == (6_000, 259_200_000)
    assert config.names.half == "p.RMQ_SYS_TRANS_HALF_TOPIC"
    assert config.immunity_ms_max == 129_600_000
    with pytest.raises(FrozenInstanceError):
        config.producer_group = "other"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"producer_group": " "}, "producer_group"),
        ({"producer_group": "a b"}, "producer_group"),
        ({"producer_group": "g" * 250}, "producer_group"),
        ({"producer_group": "RMQ_SYS_TRANS"}, "producer_group"),
        ({"topic_prefix": "a/b"}, "topic_prefix"),
        ({"topic_prefix": "RMQ_SYS_TRANS_CHECK_x"}, "topic_prefix"),
        ({"compression": "rar"}, "compression"),
        ({"check_threads": 0}, "check_threads"),
    ],
)
def test_bad_settings_are_named(given: dict[str, Any], field: str) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigError) as caught:
        _config(**given)
    assert caught.value.field == field


@pytest.mark.parametrize("name", sorted(OWNED_PROPERTIES))
def test_owned_kafka_properties_are_refused_by_name(name: str) -> None:
    """What carries a guarantee cannot be passed through, and the error says why."""
    with pytest.raises(ConfigError, match=name) as caught:
        _config(kafka={name: "1"})
    assert OWNED_PROPERTIES[name] in str(caught.value)


def test_type_checkers_know_all_settings() -> None:
    """ClientSettings has the fields of BridgeConfig, with their types."""
    assert get_type_hints(ClientSettings) == get_type_hints(BridgeConfig)


def test_from_environ_reads_variables_and_arguments_win() -> None:
    """Arguments override variables; an unknown argument is a programming error."""
    environ = {
        "HALFBRIDGE_BOOTSTRAP_SERVERS": "env:1",
        "HALFBRIDGE_PRODUCER_GROUP": "env-group",
        "HALFBRIDGE_TRANSACTION_TIMEOUT_MS": "1000",
    }
    config = BridgeConfig.from_environ(environ, producer_group="mine")
    assert (config.bootstrap_servers, config.producer_group) == ("env:1", "mine")
    assert config.transaction_timeout_ms == 1_000
    with pytest.raises(TypeError, match=r"bootstrap\w* \(did you mean bootstrap_servers\?\)"):
        BridgeConfig.from_environ(environ, bootstrap="x")


def test_from_environ_says_where_a_bad_value_came_from() -> None:
    """A variable is named as such, an argument as such, and a missing server how to give it."""
    base = {"HALFBRIDGE_BOOTSTRAP_SERVERS": "b:1", "HALFBRIDGE_PRODUCER_GROUP": "g"}
    with pytest.raises(ConfigError) as caught:
        BridgeConfig.from_environ({**base, "HALFBRIDGE_CHECK_THREADS": "many"})
    assert caught.value.origin == "HALFBRIDGE_CHECK_THREADS"
    with pytest.raises(ConfigError) as caught:
        BridgeConfig.from_environ(base, check_threads=0)
    assert caught.value.origin == "argument"
    with pytest.raises(ConfigError, match="HALFBRIDGE_BOOTSTRAP_SERVERS"):
        BridgeConfig.from_environ({}, producer_group="g")


# --- TOML files of settings ----------------------------------------------------------------
def test_read_toml(tmp_path: Path) -> None:
    """A TOML file is read; a missing or broken one is a ConfigError that names it."""
    path = tmp_path / "halfbridge.toml"
    path.write_text('count = 3\n[kafka]\n"client.id" = "x"\n')
    assert read_toml(path) == {"count": 3, "kafka": {"client.id": "x"}}
    path.write_text("count = ")
    with pytest.raises(ConfigError, match=r"halfbridge\.toml"):
        read_toml(path)
    with pytest.raises(ConfigError, match="absent") as caught:
        read_toml(tmp_path / "absent.toml")
    assert isinstance(caught.value, BridgeError)


# --- which of the user's Kafka properties reach which client -------------------------------
CONFIG = BridgeConfig(
    bootstrap_servers="b:1",
    producer_group="g",
    in_flight_max=100,
    kafka={"fetch.min.bytes": "1", "session.timeout.ms": "9000", "socket.timeout.ms": "7"},
)
CLOCK = SystemClock()


def test_a_consumers_properties_reach_consumers_only() -> None:
    """A writer or an admin client would log a warning for each of them."""
    writer = writer_properties(CONFIG, CLOCK, message_bytes_max=1_000, round_trip_s=0.0)
    for properties in (writer, admin_properties(CONFIG, CLOCK)):
        assert "fetch.min.bytes" not in properties
        assert properties["socket.timeout.ms"] == "7"
    for properties in (checks_properties(CONFIG, CLOCK), reader_properties(CONFIG, CLOCK)):
        assert properties["fetch.min.bytes"] == "1"
        assert properties["session.timeout.ms"] == "9000"


def test_a_decision_fits_behind_each_half_message() -> None:
    """The writer's queue holds twice what may be unacknowledged."""
    writer = writer_properties(CONFIG, CLOCK, message_bytes_max=1_000, round_trip_s=0.0)
    assert writer["queue.buffering.max.messages"] == 200
    assert (writer["acks"], writer["enable.idempotence"]) == ("all", True)


@pytest.mark.parametrize(
    ("given", "round_trip_s", "expected"),
    [(0, 0.0003, 2), (0, 0.001, 5), (0, 0.05, 5), (1, 0.05, 1), (5, 0.0003, 5)],
)
def test_requests_in_flight_follow_the_distance(
    given: int, round_trip_s: float, expected: int
) -> None:
    """Two near a broker, all that keep the order far from it; a given number is kept."""
    config = replace(CONFIG, requests_in_flight_max=given)
    properties = writer_properties(
        config, CLOCK, message_bytes_max=1_000, round_trip_s=round_trip_s
    )
    assert properties["max.in.flight"] == expected


def test_more_requests_in_flight_would_lose_the_order() -> None:
    """More than five are refused: a repeated request could overtake another."""
    with pytest.raises(ConfigError, match="requests_in_flight_max"):
        replace(CONFIG, requests_in_flight_max=6)


def test_each_group_is_its_own() -> None:
    """Readers of checks and of letters commit in groups of their own."""
    groups = {
        checks_properties(CONFIG, CLOCK)["group.id"],
        letters_properties(CONFIG, CLOCK)["group.id"],
    }
    assert groups == {CONFIG.names.check_group("g"), CONFIG.names.relay_group("g")}


# --- what differs between a client's assumptions and the daemon's limits -------------------

HOUR_MS = 3_600_000


def _client(**settings: Any) -> BridgeConfig:
    return BridgeConfig(bootstrap_servers="k:1", producer_group="g", **settings)


def test_defaults_of_client_and_daemon_agree() -> None:
    """Both with the settings that nobody gave, and with what is assumed without a record."""
    published = dict(limits_of(CheckerConfig(), "w-0").limits())
    # No limits of a client's.
    assert published.pop(DELIVERY_LIMIT) == Delivery.EXACTLY_ONCE.number
    assert published.pop("topic_gone_ms") == TOPIC_GONE_MS
    assert published == DaemonSettings().limits()
    assert differences(_client(), DaemonSettings()) == []


def test_settings_that_agree_are_no_difference() -> None:
    """However far from the defaults they are."""
    config = _client(transaction_timeout_ms=60_000, transaction_age_ms_max=200 * HOUR_MS)
    daemon = DaemonSettings(transaction_timeout_ms=60_000, transaction_age_ms_max=200 * HOUR_MS)
    assert differences(config, daemon) == []


@pytest.mark.parametrize("theirs", [1_000, 60_000])
def test_another_timeout_is_reported(theirs: int) -> None:
    """With the setting to change, and what is wrong until then."""
    (text,) = differences(_client(), DaemonSettings(transaction_timeout_ms=theirs))
    assert f"is 6000 in this client and {theirs} in the daemon" in text
    assert f"set transaction_timeout_ms={theirs} (HALFBRIDGE_TRANSACTION_TIMEOUT_MS)" in text
    assert "`late`" in text


def test_a_shorter_age_of_the_daemon_endangers_long_immunities() -> None:
    """Half of it is the longest that leaves time for a check."""
    (text,) = differences(_client(), DaemonSettings(transaction_age_ms_max=2 * HOUR_MS))
    assert f"set transaction_age_ms_max={2 * HOUR_MS}" in text
    assert f"immunity of more than {HOUR_MS} ms may be discarded before anybody is asked" in text


def test_a_longer_age_of_the_daemon_is_not_used() -> None:
    """This client refuses what the daemon would take."""
    (text,) = differences(_client(), DaemonSettings(transaction_age_ms_max=200 * HOUR_MS))
    assert f"immunity of more than {36 * HOUR_MS} ms are refused" in text


@pytest.mark.parametrize(
    "name",
    ["metadata_bytes_max", "op_bytes_max", "transaction_messages_max", "transaction_bytes_max"],
)
def test_only_narrower_sizes_are_reported(name: str) -> None:
    """What this client may write, such a daemon does not deliver; a wider one delivers it."""
    mine = DaemonSettings().limits()[name]
    (text,) = differences(_client(), DaemonSettings()._replace(**{name: mine - 1}))
    assert f"{name} is {mine} in this client and {mine - 1} in the daemon" in text
    assert differences(_client(), DaemonSettings()._replace(**{name: mine + 1})) == []


def test_checks_are_the_daemons_own_business() -> None:
    """The client assumes nothing of their interval and count, and nothing of later limits."""
    daemon = DaemonSettings(check_interval_ms=1, check_count_max=1, further={"later": 1})
    assert differences(_client(), daemon) == []


# --- how ends of partitions are asked for while no broker answers --------------------------
_LIMIT_S = 1.0
_ASKERS = 8


def test_ends_are_asked_side_by_side() -> None:
    """Many threads that roll back, or answer, wait for their limit, not for each other's."""
    config = BridgeConfig(
        bootstrap_servers="127.0.0.1:1",
        producer_group="g",
        decision_timeout_ms=int(_LIMIT_S * 1_000),
    )
    ends = EndAsker(config, system_ports())
    began = monotonic()
    with ThreadPoolExecutor(_ASKERS) as pool:
        asked = [pool.submit(ends.half_end, 0) for _ in range(_ASKERS)]
        failures = [each.exception() for each in asked]
    assert [type(failure) for failure in failures] == [RetriableError] * _ASKERS
    assert monotonic() - began < _ASKERS * _LIMIT_S / 2
