"""A stranger who may write half and op topic of an installation that demands signatures."""

from pathlib import Path

import pytest

from halfbridge.bridge import Message, MessageView, Resolution, TransactionProducer
from halfbridge.serde.headers import SIGN
from halfbridge.serde.records import DeadReason, OpKind, OpSource
from tests.integration.installation import GROUP, Installation
from tests.integration.tail import Stored
from tests.kit.signing import a_key, a_table, write_key_file
from tests.kit.waiting import until

pytestmark = [pytest.mark.feature, pytest.mark.broker]

# RFC 8032, tests 1 to 3.
PRIVATE = {
    "client": "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=",
    "daemon": "TM0Imyj/ltqdtsNG7BFOD1uKMZ81q6Yk2oztOU+4pvs=",
    "operator": "xapUwP9onAG6Fm8dJl2G3p3VPTH3VoAEyvG2XtXm5Uo=",
}


def _unknown(_: MessageView) -> Resolution:
    return Resolution.UNKNOWN


@pytest.mark.parametrize("algorithm", ["hmac-sha256", "ed25519"])
def test_a_stranger_changes_nothing(
    installation: Installation, tmp_path: Path, algorithm: str
) -> None:
    """Unsigned decisions, halves and copies have no effect, before and after a restart."""
    keys = [a_key(role) for role in PRIVATE]
    if algorithm == "ed25519":
        keys = [
            a_key(role, algorithm=algorithm, secret="", private=private)
            for role, private in PRIVATE.items()
        ]
    demands = [{"groups": [GROUP], "from_ms": 0, "fresh_ms": 300_000}]
    key_file = write_key_file(tmp_path / "keys.toml", a_table(*keys, demands=demands))
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    daemon = installation.start(key_file=key_file)
    with TransactionProducer(
        bootstrap_servers=installation.servers,
        topic_prefix=installation.names.prefix,
        producer_group=GROUP,
        topics=[orders],
        checker=_unknown,
        key_file=str(key_file),
    ) as producer:
        tx = producer.begin()
        receipt = tx.send(Message(orders, key=b"key", value=b"two shirts"))
        half = Stored(tx.id, receipt.half_partition, receipt.half_offset, 0)
        installation.op(OpKind.ROLLBACK, half)
        installation.op(OpKind.DISCARD, half, source=OpSource.OPERATOR)
        installation.half(
            orders,
            tx.id,
            value=b"forged",
            origin_offset=receipt.half_offset,
            first_append_timestamp=1,
        )
        forged = installation.half(orders, value=b"forged")
        installation.op(OpKind.COMMIT, forged)
        letters = installation.tail(installation.names.dead)
        until("5 dead letters", lambda: len(letters.to_end()) >= 5)
        daemon.stop()
        daemon = installation.start(key_file=key_file)
        tx.commit()
        delivered = installation.tail(orders)
        until("the message", lambda: len(delivered.to_end()) >= 1)
    (record,) = delivered.to_end()
    assert record.value == b"two shirts"
    assert SIGN not in dict(record.headers)
    dead = installation.dead(5)
    assert {each.dead.reason for each in dead} == {DeadReason.INVALID}
    assert all("unsigned" in each.dead.detail for each in dead)
