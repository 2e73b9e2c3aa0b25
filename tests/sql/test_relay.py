"""The relay on each database, with a real broker and a real daemon."""

import pytest

from halfbridge.bridge.message import Message
from halfbridge.testkit.stack import HalfbridgeStack
from tests.sql.relaying import Scene, run_dry

pytestmark = [pytest.mark.feature, pytest.mark.broker]


def test_rows_are_delivered_once_and_in_order(
    relaying: Scene, halfbridge_stack: HalfbridgeStack, topic: str
) -> None:
    """Rows of a key come in order of insertion, with their headers; rows without keys come too."""
    messages = relaying.messages
    with messages.engine.begin() as connection:
        for n in range(60):
            key = None if n % 6 == 5 else b"key-%d" % (n % 6)
            headers = [("n", b"%d" % n)] if n % 2 else []
            messages.add(connection, Message(topic, key=key, value=b"%d" % n, headers=headers))
    relay = relaying.relay(transaction_rows_max=7, window_rows=25)
    run_dry(relay)
    relay.close()
    assert set(relaying.states()) == {"GLOBAL_COMMIT*"}
    records = halfbridge_stack.read_committed(topic, count=60)
    assert sorted(int(record.value or b"") for record in records) == list(range(60))
    for number in range(5):
        mine = [int(r.value or b"") for r in records if r.key == b"key-%d" % number]
        assert mine == sorted(mine)
    for record in records:
        user = [header for header in record.headers if not header[0].startswith("__")]
        assert user == ([("n", record.value)] if int(record.value or b"") % 2 else [])
