"""Which Kafka is fetched, and how it logs."""

from __future__ import annotations

import pytest

from halfbridge.testkit import jars
from halfbridge.testkit.choice import KAFKA_VERSION
from halfbridge.testkit.jars import broker_jars, kafka_version


def test_version_is_pinned_unless_given() -> None:
    """HALFBRIDGE_KAFKA_VERSION wins; an empty one does not count."""
    assert kafka_version({}) == KAFKA_VERSION
    assert kafka_version({"HALFBRIDGE_KAFKA_VERSION": ""}) == KAFKA_VERSION
    assert kafka_version({"HALFBRIDGE_KAFKA_VERSION": "3.9.1"}) == "3.9.1"


@pytest.mark.parametrize("version", ["2.8.0", "next", "5.0.0"])
def test_unknown_version_is_refused(version: str) -> None:
    """A Kafka whose log binding is not known is an error that names the variable."""
    with pytest.raises(ValueError, match="HALFBRIDGE_KAFKA_VERSION"):
        broker_jars(version)


@pytest.mark.parametrize("binding", jars._LOG_BINDINGS.values())
def test_log_configuration_is_in_the_package(binding: jars._LogBinding) -> None:
    """Every binding's file is there and writes where the node tells it to."""
    assert "${" in (text := (jars._HERE / binding.config).read_text(encoding="utf-8"))
    assert "halfbridge.log" in text
