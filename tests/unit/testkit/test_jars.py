"""Which Kafka is fetched, and how it logs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from halfbridge.testkit import jars
from halfbridge.testkit.jars import KAFKA_VERSION, broker_jars, kafka_version


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


def test_lock_lines_are_those_of_a_lock_file(tmp_path: Path) -> None:
    """Checksum, size and coordinate, in the order of the class path."""
    jar = tmp_path / "x.jar"
    jar.write_bytes(b"x")
    (line,) = jars.lock_lines({"b:x-y_2.13:3.0-rc1": jar})
    assert line == f"{hashlib.sha256(b'x').hexdigest()} 1 b:x-y_2.13:3.0-rc1\n"
