"""Conformance case 27 on a real broker: an operator stops new transactions, and accepts again."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from halfbridge.bridge import (
    Message,
    MessageView,
    Resolution,
    TransactionProducer,
    TransactionsRejectedError,
)
from halfbridge.cli import cli
from tests.integration.installation import Installation
from tests.kit.waiting import until

pytestmark = [pytest.mark.feature, pytest.mark.broker]


def _unknown(_view: MessageView) -> Resolution:
    return Resolution.UNKNOWN


def _transactions(installation: Installation, *words: str) -> tuple[int, dict[str, Any]]:
    place = ("--bootstrap-servers", installation.servers)
    prefix = ("--topic-prefix", installation.names.prefix)
    result = CliRunner().invoke(cli, ["transactions", *words, "--json", *place, *prefix])
    assert result.stdout, result.stderr
    return result.exit_code, json.loads(result.stdout)


def _refuses(producer: TransactionProducer) -> bool:
    try:
        producer.begin()
    except TransactionsRejectedError:
        return True
    return False


def test_case_027_nothing_is_stored_while_operators_reject(installation: Installation) -> None:
    """Begin and send raise the reason, plain sends work, and what is open is delivered."""
    orders, half = installation.real("orders"), installation.names.half
    installation.start()
    with installation.producer(_unknown) as producer:
        open_one = producer.begin()
        open_one.send(Message(orders, value=b"open"))
        status, reported = _transactions(
            installation, "reject", "--yes", "--reason", "the database moves", "--actor", "ada"
        )
        assert (status, reported["holds"], reported["is_rejecting"]) == (0, True, True)
        until("the client refuses", lambda: _refuses(producer))
        with pytest.raises(TransactionsRejectedError, match="ada stopped new transactions: the da"):
            open_one.send(Message(orders, value=b"more"))
        assert len(installation.tail(half).to_end()) == 1
        installation.write(orders, b"plain")
        open_one.commit()
        values = [each.value for each in installation.tail(orders).until(2)]
        assert sorted(values) == [b"open", b"plain"]

    with installation.producer(_unknown) as restarted:
        assert _refuses(restarted)
        assert _transactions(installation, "show")[1]["reason"] == "the database moves"
        _transactions(installation, "accept", "--yes", "--reason", "moved")
        until("the client begins again", lambda: not _refuses(restarted))
