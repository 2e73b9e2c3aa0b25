"""Which Kafka tests get, where none is needed to tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfbridge.testkit import containers
from halfbridge.testkit.ports import HOST, free_ports
from halfbridge.testkit.source import KafkaMissingError, open_kafka


def test_given_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is missing, under the variable's name; nothing else is tried in its place."""
    monkeypatch.setattr("halfbridge.testkit.source._GIVEN_S_MAX", 0.1)
    (port,) = free_ports(1)
    environ = {"HALFBRIDGE_TEST_BOOTSTRAP": f"{HOST}:{port}", "HALFBRIDGE_TEST_DOCKER": "1"}
    with (
        pytest.raises(KafkaMissingError, match="HALFBRIDGE_TEST_BOOTSTRAP: nothing listens"),
        open_kafka(environ),
    ):
        pass


def test_docker_asked_for_in_ci_without_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CI job that asked for Docker does not pass on another broker."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert not containers.docker_answers()
    with (
        pytest.raises(KafkaMissingError, match="no Docker daemon"),
        open_kafka({"HALFBRIDGE_TEST_DOCKER": "1", "CI": "true"}),
    ):
        pass


def test_neither_jars_nor_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing for the embedded broker is told: it needs the least."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("HALFBRIDGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HALFBRIDGE_MAVEN_REPOSITORY", (tmp_path / "nowhere").as_uri())
    with pytest.raises(KafkaMissingError, match="no embedded broker"), open_kafka({}):
        pass
