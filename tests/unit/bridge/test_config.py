"""BridgeConfig: one frozen object, checked once."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from halfbridge.bridge.config import OWNED_PROPERTIES, BridgeConfig
from halfbridge.kafka.errors import ConfigError


def _config(**given: Any) -> BridgeConfig:
    return BridgeConfig(**{"bootstrap_servers": "b:1", "producer_group": "g", **given})


def test_defaults_and_derived_names() -> None:
    """RocketMQ's defaults; names carry the prefix; immunity is at most half the age."""
    config = _config(topic_prefix="p.")
    assert (config.transaction_timeout_ms, config.transaction_age_ms_max) == (6_000, 259_200_000)
    assert config.names.half == "p.RMQ_SYS_TRANS_HALF_TOPIC"
    assert config.immunity_ms_max == 129_600_000
    with pytest.raises(FrozenInstanceError):
        config.producer_group = "other"  # type: ignore[misc]


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
