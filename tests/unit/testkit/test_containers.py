"""Brokers in containers, as far as no Docker is needed to tell what would be started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.containers import IMAGE, REDPANDA_IMAGE, holds_redpanda, redpanda_command
from halfbridge.testkit.stack import HalfbridgeStack

COMPOSE = Path(__file__).parents[3] / "docker-compose.yml"
PORT = 17_001


@pytest.mark.parametrize(
    ("image", "redpanda"),
    [
        (IMAGE, False),
        (REDPANDA_IMAGE, True),
        ("mirror.example:5000/redpandadata/redpanda:v26.1.2", True),
        ("redpandadata/redpanda@sha256:0123", True),
        ("redpanda.example/apache/kafka:4.2.0", False),
        ("local/redpanda-unstable", True),
    ],
)
def test_an_image_says_which_broker_it_holds(image: str, redpanda: bool) -> None:
    """By the last part of its name, wherever it comes from."""
    assert holds_redpanda(image) is redpanda


def test_redpanda_is_started_as_the_compose_file_does() -> None:
    """The same image and words, but for listeners."""
    assert of_compose("image") == REDPANDA_IMAGE
    ours, theirs = redpanda_command(PORT), of_compose("command")
    assert without_listeners(ours) == without_listeners(theirs)
    assert len(ours) == len(theirs)


def test_redpanda_advertises_the_port_of_this_machine() -> None:
    """It listens on all interfaces inside, under the name of the listener that it advertises."""
    options = dict(word.split("=", 1) for word in redpanda_command(PORT)[2:])
    listening = by_name(options["--kafka-addr"])
    advertised = by_name(options["--advertise-kafka-addr"])
    assert listening["host"] == "0.0.0.0:9092"
    assert advertised["host"] == f"127.0.0.1:{PORT}"
    assert listening.keys() == advertised.keys()


def test_a_stack_takes_one_broker() -> None:
    """Which of two addresses it would use, nobody could tell."""
    with pytest.raises(ValueError, match="not both"):
        HalfbridgeStack("127.0.0.1:9092", kafka=EmbeddedBroker())


def without_listeners(words: list[str]) -> list[str]:
    """Return a command without the addresses in it."""
    return [word for word in words if "kafka-addr" not in word]


def by_name(addresses: str) -> dict[str, str]:
    """Return name -> address of a list as rpk takes it."""
    return dict(each.split("://") for each in addresses.split(","))


def of_compose(what: str) -> Any:
    """Return a property of the compose file's Redpanda, variables replaced by their defaults."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE.read_text("utf-8"))
    return yaml.safe_load(text)["services"]["redpanda"][what]
