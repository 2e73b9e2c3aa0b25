"""What every Kafka client of a worker is told."""

from __future__ import annotations

from checker.clients import client_config
from checker.config import CheckerConfig


def test_the_users_own_properties_win_over_our_defaults() -> None:
    """How fast clients reconnect is the user's to say; which brokers and topics is not."""
    told = {"reconnect.backoff.ms": "1000", "security.protocol": "PLAINTEXT"}

    config = client_config(CheckerConfig(bootstrap_servers="one:9092", kafka=told))

    assert config.items() >= told.items()
    assert config["bootstrap.servers"] == "one:9092"
    assert config["allow.auto.create.topics"] is False
