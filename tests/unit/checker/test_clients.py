"""What every Kafka client of a worker is told."""

from __future__ import annotations

import pytest

from bridge.errors import ConfigError
from checker.admin.kafka_io import Cluster
from checker.bodies.kafka_io import BodyReader
from checker.clients import client_config
from checker.config import CheckerConfig
from checker.inquiry.kafka_io import Questions
from checker.intake.kafka_io import Input
from checker.outlet.kafka_io import CheckSender, Transactor
from checker.slots import slot_ids


def test_the_users_own_properties_win_over_our_defaults() -> None:
    """How fast clients reconnect is the user's to say; which brokers and topics is not."""
    told = {"reconnect.backoff.ms": "1000", "security.protocol": "PLAINTEXT"}

    config = client_config(CheckerConfig(bootstrap_servers="one:9092", kafka=told))

    assert config.items() >= told.items()
    assert config["bootstrap.servers"] == "one:9092"
    assert config["allow.auto.create.topics"] is False


def test_what_the_group_consumer_may_do_hurts_no_other_client() -> None:
    """A shorter max.poll.interval.ms fits our session time-out, not the client's own default."""
    given = {"max.poll.interval.ms": "12000"}
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka=given)

    BodyReader(config)
    Input(config, slot_ids("w-0", topic_prefix="")).close(leave=False)
    Questions(config)


def test_a_property_that_no_client_knows_is_a_configuration_error() -> None:
    """The daemon ends with one line instead of being started again and again."""
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka={"no.such.property": "1"})
    ids = slot_ids("w-0", topic_prefix="")

    for client in (
        lambda: BodyReader(config),
        lambda: Input(config, ids),
        lambda: Questions(config),
        lambda: CheckSender(config),
        lambda: Transactor(config, "id"),
        lambda: Cluster("127.0.0.1:1", kafka=config.kafka),
    ):
        with pytest.raises(ConfigError, match=r"no\.such\.property"):
            client()
