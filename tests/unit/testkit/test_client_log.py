"""A client log keeps what a process did, also when it was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbridge.serde.records import OpKind
from halfbridge.testkit.history import (
    Claim,
    ClientLog,
    Outcome,
    SentMessage,
    digest_of,
    read_client_logs,
)


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
