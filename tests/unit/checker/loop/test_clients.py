"""What every Kafka client of a worker is told."""

from __future__ import annotations

import pytest

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.asking import CheckSender
from halfbridge.checker.loop.clients import Questions, client_config, member_config
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.intake import Input
from halfbridge.checker.loop.outlet import Transactor
from halfbridge.checker.loop.pair import BodyReader
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.checker.process.slots import slot_ids
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import ConfigError

PORTS = system_ports()


def test_the_users_own_properties_win_over_our_defaults() -> None:
    """How fast clients reconnect is the user's to say; which brokers and topics is not."""
    told = {"reconnect.backoff.ms": "1000", "security.protocol": "PLAINTEXT"}

    config = client_config(CheckerConfig(bootstrap_servers="one:9092", kafka=told))

    assert config.items() >= told.items()
    assert config["bootstrap.servers"] == "one:9092"
    assert config["allow.auto.create.topics"] is False


def test_how_records_are_fetched_is_the_users_to_say() -> None:
    """Waits and sizes of fetches are only speed."""
    told = {"fetch.wait.max.ms": "3", "fetch.min.bytes": "1000000"}

    config = CheckerConfig(bootstrap_servers="one:9092", kafka=told)
    properties = member_config(config, "w-0")

    assert properties["fetch.wait.max.ms"] == "3"
    assert properties["fetch.min.bytes"] == "1000000"


def test_what_the_group_consumer_may_do_hurts_no_other_client() -> None:
    """A shorter max.poll.interval.ms fits our session time-out, not the client's own default."""
    given = {"max.poll.interval.ms": "12000"}
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka=given)

    BodyReader(config, PORTS)
    Input(config, slot_ids("w-0", topic_prefix=""), PORTS).close(leave=False)
    Questions(config, PORTS)


def test_a_property_that_no_client_knows_is_a_configuration_error() -> None:
    """The daemon ends with one line instead of being started again and again."""
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka={"no.such.property": "1"})
    ids = slot_ids("w-0", topic_prefix="")

    for client in (
        lambda: BodyReader(config, PORTS),
        lambda: Input(config, ids, PORTS),
        lambda: Questions(config, PORTS),
        lambda: CheckSender(config, PORTS),
        lambda: Transactor(config, "id", ports=PORTS),
        lambda: Cluster("127.0.0.1:1", kafka=config.kafka),
    ):
        with pytest.raises(ConfigError, match=r"no\.such\.property"):
            client()


@pytest.mark.parametrize("name", ["stats_cb", "throttle_cb", "oauth_cb", "default.topic.config"])
def test_a_property_that_takes_no_text_is_a_configuration_error(name: str) -> None:
    """Functions and mappings cannot be given on a command line; one line says so."""
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka={name: "text"})

    with pytest.raises(ConfigError, match="kafka"):
        Input(config, slot_ids("w-0", topic_prefix=""), PORTS)


def test_a_record_larger_than_the_producers_queue_fails_in_time() -> None:
    """There never is room for it: the kafka_txn fails and says why, instead of waiting for ever."""
    own = {"test.mock.num.brokers": "1", "queue.buffering.max.kbytes": "1"}
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka=own, kafka_txn_timeout_ms=1000)
    transactor = Transactor(config, "id", ports=PORTS)
    transactor.start()
    record = Outgoing("orders", 0, None, b"x" * 2000, [], 0)

    with pytest.raises(KafkaTxnFailedError, match=r"queue\.buffering\.max\.kbytes"):
        transactor.write([record])
    transactor.close()


def test_the_producers_queue_may_be_made_smaller() -> None:
    """What the operator says of it is neither refused nor silently replaced by our own number."""
    own = {"test.mock.num.brokers": "1", "queue.buffering.max.messages": "3"}
    config = CheckerConfig(bootstrap_servers="127.0.0.1:1", kafka=own)
    transactor = Transactor(config, "id", ports=PORTS)
    transactor.start()
    transactor._writer.begin()

    def produce() -> None:
        transactor._writer.produce("orders", b"x", None, 0, lambda *_: None)

    for _ in range(3):
        produce()
    with pytest.raises(BufferError):
        produce()
    transactor.close()
