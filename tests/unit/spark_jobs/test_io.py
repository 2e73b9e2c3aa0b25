"""The options of a read: what makes it right is fixed, the rest is the caller's."""

from __future__ import annotations

import pytest

from spark_jobs.io import real_topic_options


def test_a_real_topic_is_read_committed_and_whole() -> None:
    """Committed records only, no silent loss, headers, from the first offset to the last."""
    options = real_topic_options("orders", bootstrap_servers="a:1,b:2")
    right = {
        "kafka.bootstrap.servers": "a:1,b:2",
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }
    assert {name: options[name] for name in right} == right


def test_consumer_properties_are_passed_on() -> None:
    """They get Spark's prefix and win over our tuning."""
    given = {"security.protocol": "SSL", "max.poll.records": "7"}
    options = real_topic_options("orders", bootstrap_servers="a:1", kafka=given)
    assert options["kafka.security.protocol"] == "SSL"
    assert options["kafka.max.poll.records"] == "7"


@pytest.mark.parametrize("name", ["isolation.level", "bootstrap.servers"])
def test_what_makes_a_read_right_cannot_be_changed(name: str) -> None:
    """A job that quietly counted aborted rows, or another cluster's, would be worse than none."""
    with pytest.raises(ValueError, match=name):
        real_topic_options("orders", bootstrap_servers="a:1", kafka={name: "x"})


@pytest.mark.parametrize(("topic", "servers"), [("", "a:1"), ("orders", "")])
def test_empty_names_are_refused(topic: str, servers: str) -> None:
    """Neither means anything to Spark."""
    with pytest.raises(ValueError, match="empty"):
        real_topic_options(topic, bootstrap_servers=servers)
