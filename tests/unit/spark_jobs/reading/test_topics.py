"""The options of a read: what makes it right is fixed, the rest is the caller's."""

from __future__ import annotations

import pytest

from halfbridge.spark_jobs.reading.topics import Topics, source_options


def test_a_real_topic_is_read_committed_and_whole() -> None:
    """Committed records only, no silent loss, headers included."""
    options = source_options(Topics.of("orders"), bootstrap_servers="a:1,b:2")
    right = {
        "kafka.bootstrap.servers": "a:1,b:2",
        "subscribe": "orders",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }
    assert {name: options[name] for name in right} == right


def test_consumer_properties_are_passed_on() -> None:
    """They get Spark's prefix and win over our tuning."""
    given = {"security.protocol": "SSL", "max.poll.records": "7"}
    options = source_options(Topics.of("orders"), bootstrap_servers="a:1", kafka=given)
    assert options["kafka.security.protocol"] == "SSL"
    assert options["kafka.max.poll.records"] == "7"


@pytest.mark.parametrize("name", ["isolation.level", "bootstrap.servers"])
def test_what_makes_a_read_right_cannot_be_changed(name: str) -> None:
    """A job that quietly counted aborted rows, or another cluster's, would be worse than none."""
    with pytest.raises(ValueError, match=name):
        source_options(Topics.of("orders"), bootstrap_servers="a:1", kafka={name: "x"})


def test_empty_servers_are_refused() -> None:
    """They mean nothing to Spark."""
    with pytest.raises(ValueError, match="empty"):
        source_options(Topics.of("orders"), bootstrap_servers="")


@pytest.mark.parametrize(
    ("names", "pattern"), [((), ""), (("",), ""), (("a",), "b.*"), (("a,b",), "")]
)
def test_topics_are_names_or_a_pattern(names: tuple[str, ...], pattern: str) -> None:
    """Nothing, an empty name, both, and two names in one are refused."""
    with pytest.raises(ValueError, match="topic"):
        Topics.of(*names, pattern=pattern)
