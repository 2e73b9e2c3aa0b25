"""The records of one message transaction, as the daemon decodes them."""

from __future__ import annotations

from halfbridge.bridge.message import Message
from halfbridge.bridge.transaction_records import encoded_decision, half_headers
from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import CONTEXT, HALF
from halfbridge.serde.records import OpKind, OpSource

NOW_MS = 1_800_000_000_123
ID = "f" * 32


def headers_of(message: Message, *, context: bytes | None = None) -> list[tuple[str, bytes | None]]:
    return half_headers(
        message,
        transaction_id=ID,
        now_ms=NOW_MS,
        producer_group="shop",
        index=3,
        immunity_ms=60_000,
        context=context,
    )


def test_a_half_record_names_where_its_message_goes() -> None:
    """Its metadata has the real topic and partition, the index, the group and the times."""
    ((name, encoded),) = headers_of(Message("orders", key=b"k", partition=7))
    assert name == HALF
    assert encoded is not None
    metadata = HALF_METADATA.decode(encoded)
    assert (metadata.transaction_id, metadata.message_index) == (ID, 3)
    assert (metadata.real_topic, metadata.real_partition) == ("orders", 7)
    assert (metadata.producer_group, metadata.born_timestamp) == ("shop", NOW_MS)
    assert metadata.immunity_ms == 60_000


def test_the_users_headers_come_first_and_in_their_order() -> None:
    """Then the context, if there is one, and the metadata last."""
    message = Message("orders", headers=[("b", b"1"), ("a", None), ("b", b"2")])
    given = headers_of(message, context=b"row 17")
    assert given[:4] == [("b", b"1"), ("a", None), ("b", b"2"), (CONTEXT, b"row 17")]
    assert [name for name, _ in given[4:]] == [HALF]
    assert [name for name, _ in headers_of(message)] == ["b", "a", "b", HALF]


def test_a_decision_names_its_producer_and_the_number_of_messages() -> None:
    """The daemon delivers nothing where fewer messages are there than the decision counts."""
    op = OP.decode(
        encoded_decision(
            OpKind.COMMIT,
            transaction_id=ID,
            now_ms=NOW_MS,
            producer_group="shop",
            half_offset=41,
            message_count=2,
            actor="host-1",
        )
    )
    assert (op.kind, op.source, op.actor) == (OpKind.COMMIT, OpSource.PRODUCER, "host-1")
    assert (op.transaction_id, op.producer_group, op.timestamp) == (ID, "shop", NOW_MS)
    assert (op.half_offset, op.message_count) == (41, 2)
