"""The daemon's settings: defaults, precedence, and errors that name the field."""

import json
from pathlib import Path

import pytest

from halfbridge.checker.config import OWNED_KAFKA_KEYS, UNSAFE_KAFKA_KEYS, CheckerConfig
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.settings import load, to_plain


def test_defaults_are_the_designs() -> None:
    """The defaults are those of the design."""
    config = CheckerConfig()

    assert config.transaction_timeout_ms == 6_000
    assert config.check_interval_ms == 30_000
    assert config.check_count_max == 15
    assert config.transaction_age_ms_max == 72 * 3_600_000
    assert config.check_backoff_ms_max == 600_000
    assert config.ledger_bytes_max == 128 * 1024 * 1024
    assert (config.batch_records_max, config.batch_bytes_max) == (5000, 16 * 1024 * 1024)
    assert config.kafka_txn_timeout_ms == 20_000


def test_flag_wins_over_environment_and_environment_over_file() -> None:
    """Each setting comes from the source with the highest precedence that has it."""
    config = load(
        CheckerConfig,
        flags={"check_count_max": "3"},
        environ={"HALFBRIDGE_CHECK_COUNT_MAX": "4", "HALFBRIDGE_CHECK_INTERVAL_MS": "200"},
        file={"check_interval_ms": 300, "transaction_timeout_ms": 400},
    )

    assert config.check_count_max == 3
    assert config.check_interval_ms == 200
    assert config.transaction_timeout_ms == 400


@pytest.mark.parametrize(
    ("values", "first", "second"),
    [
        (
            {"transaction_timeout_ms": 2000, "transaction_age_ms_max": 1000},
            "transaction_timeout_ms",
            "transaction_age_ms_max",
        ),
        (
            {"check_interval_ms": 2000, "check_backoff_ms_max": 1000},
            "check_interval_ms",
            "check_backoff_ms_max",
        ),
        (
            {"batch_bytes_max": 2 * 1024 * 1024, "ledger_bytes_max": 1024 * 1024},
            "batch_bytes_max",
            "ledger_bytes_max",
        ),
        (
            {"batch_records_max": 20, "republish_window_records": 10},
            "batch_records_max",
            "republish_window_records",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_both_named(
    values: dict[str, int], first: str, second: str
) -> None:
    """A pair in the wrong order is one error that names both fields."""
    with pytest.raises(ConfigError) as caught:
        CheckerConfig(**values)

    assert first in str(caught.value)
    assert second in str(caught.value)


@pytest.mark.parametrize("key", sorted(OWNED_KAFKA_KEYS))
def test_owned_kafka_property_names_the_setting(key: str) -> None:
    """A Kafka property that has its own setting is refused, and the setting is named."""
    with pytest.raises(ConfigError, match=OWNED_KAFKA_KEYS[key]):
        CheckerConfig(kafka={key: "x"})


@pytest.mark.parametrize("key", sorted(UNSAFE_KAFKA_KEYS))
def test_unsafe_kafka_property_is_refused_by_name(key: str) -> None:
    """A Kafka property that would break exactly-once is refused by its name."""
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        CheckerConfig(kafka={key: "x"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bootstrap_servers", " "),
        ("topic_prefix", "a b"),
        ("topic_prefix", "RMQ_SYS_TRANS_CHECK_x"),
        ("log_level", "loud"),
        ("transactional_producers", 5),
        ("workers", 0),
        ("metrics_port", 70_000),
    ],
)
def test_bad_value_names_its_field(field: str, value: object) -> None:
    """A value that is not allowed is an error with the field's name."""
    with pytest.raises(ConfigError, match=field):
        CheckerConfig(**{field: value})


def test_plain_form_survives_json() -> None:
    """Settings are equal after conversion to JSON and back."""
    config = CheckerConfig(
        state_dir=Path("/tmp/x"),
        kafka={"sasl.password": "a,b=c"},
        leave=True,
        topic_prefix="eu.",
        check_count_max=2,
    )

    plain = json.loads(json.dumps(to_plain(config)))

    assert config == load(CheckerConfig, flags=plain, environ={}, file={})


def test_secrets_stay_out_of_the_repr() -> None:
    """The repr does not contain values of Kafka properties."""
    assert "hunter2" not in repr(CheckerConfig(kafka={"sasl.password": "hunter2"}))
