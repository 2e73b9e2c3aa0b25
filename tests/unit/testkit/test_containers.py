"""Brokers in containers, as far as no Docker is needed to tell what would be started."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from halfbridge.serde.records import OpKind
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.containers import IMAGE, REDPANDA_IMAGE, holds_redpanda, redpanda_command
from halfbridge.testkit.history import (
    Claim,
    ClientLog,
    Outcome,
    SentMessage,
    digest_of,
    read_client_logs,
)
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


# --- a client log keeps what a process did, also when it was killed ------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the log is kept."""
    return tmp_path / "client.jsonl"


@pytest.fixture
def log(path: Path) -> Iterator[ClientLog]:
    """Return a log that one transaction was announced in."""
    client_log = ClientLog(path, producer_group="g")
    client_log.sending(
        "t",
        0,
        topic="orders",
        key=None,
        value=b"",
        headers=[("a", b"\xff"), ("b", None)],
        label="multi",
    )
    yield client_log
    client_log.close()


def test_round_trip(path: Path, log: ClientLog) -> None:
    """Messages, headers, nulls and acknowledged decisions come back as they were."""
    log.sent("t", 0)
    log.deciding("t", OpKind.COMMIT)
    log.decided("t", OpKind.COMMIT, partition=3, offset=9)
    (tx,) = read_client_logs([path])

    assert (tx.transaction_id, tx.producer_group, tx.label) == ("t", "g", "multi")
    assert tx.messages == (
        SentMessage(
            index=0,
            topic="orders",
            key=None,
            digest=digest_of(b""),
            headers=(("a", b"\xff"), ("b", None)),
        ),
    )
    assert tx.claims == (Claim(kind=OpKind.COMMIT, outcome=Outcome.OK, position=(3, 9)),)


def test_announcement_without_an_end_is_in_doubt(path: Path, log: ClientLog) -> None:
    """A send or decision that was begun and never ended is UNKNOWN."""
    log.deciding("t", OpKind.ROLLBACK)
    (tx,) = read_client_logs([path])

    assert tx.messages[0].outcome is Outcome.UNKNOWN
    assert tx.claims == (Claim(kind=OpKind.ROLLBACK, outcome=Outcome.UNKNOWN),)


def test_failures_are_kept_apart(path: Path, log: ClientLog) -> None:
    """A send and a decision that failed for certain are FAILED."""
    log.send_failed("t", 0)
    log.deciding("t", OpKind.ROLLBACK)
    log.decide_failed("t", OpKind.ROLLBACK)
    (tx,) = read_client_logs([path])

    assert tx.messages[0].outcome is Outcome.FAILED
    assert tx.claims == (Claim(kind=OpKind.ROLLBACK, outcome=Outcome.FAILED),)


def test_two_processes_are_merged(path: Path, log: ClientLog, tmp_path: Path) -> None:
    """A restarted service's answer joins the transaction of its killed predecessor."""
    log.sent("t", 0)
    successor = ClientLog(tmp_path / "restarted.jsonl", producer_group="g")
    successor.answering("t", OpKind.COMMIT)
    successor.close()
    (tx,) = read_client_logs([path, tmp_path / "restarted.jsonl"])

    assert len(tx.messages) == 1
    assert tx.claims == (Claim(kind=OpKind.COMMIT, outcome=Outcome.UNKNOWN),)


def test_torn_last_line_is_left_out(path: Path, log: ClientLog) -> None:
    """What a killed process was just writing did not happen."""
    with path.open("ab") as file:
        file.write(b'{"e":"sent","tx":"t",')
    (tx,) = read_client_logs([path])

    assert tx.messages[0].outcome is Outcome.UNKNOWN


def test_unknown_entry(path: Path) -> None:
    """An entry of no known name is an error, never skipped."""
    path.write_bytes(b'{"e":"guessed","tx":"t"}\n')

    with pytest.raises(ValueError, match="no entry 'guessed'"):
        read_client_logs([path])
