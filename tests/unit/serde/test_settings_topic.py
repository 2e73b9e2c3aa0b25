"""The records of the settings topic: golden bytes, bounds, and what a reader refuses."""

import pytest

from halfbridge.serde.errors import DecodeError, UnknownSchemaError
from halfbridge.serde.settings_topic import (
    REASON_BYTES_MAX,
    SWITCH_BYTES_MAX,
    TYPE_BYTES_MAX,
    TopicType,
    TopicTypeRecord,
    TransactionsSwitch,
    decode_switch,
    decode_type,
    encode_switch,
    encode_type,
    topic_of,
    type_key,
)

TYPE_V1 = TopicTypeRecord(type=TopicType.PLAIN, at_ms=1_700_000_000_123, who="ada@host-7")

# Never changed: what was written once must be readable for ever.
GOLDEN = "c3015d4766804a736e8802f6a1abfef9621461646140686f73742d37"


def test_the_bytes_do_not_change() -> None:
    """What is written and what is read stays the same within a schema version."""
    assert encode_type(TYPE_V1).hex() == GOLDEN
    assert decode_type(bytes.fromhex(GOLDEN)) == TYPE_V1


def test_keys_name_their_topic() -> None:
    """Other keys of the settings topic name none, and neither do names that no topic has."""
    assert topic_of(type_key("orders")) == "orders"
    for key in (None, b"daemon", b"transactions", b"topic", type_key("x" * 250)):
        assert topic_of(key) is None


def test_what_is_not_a_type_is_refused() -> None:
    """Cut off anywhere, or too long."""
    whole = bytes.fromhex(GOLDEN)
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_type(whole[:length])
    with pytest.raises(DecodeError, match="at most"):
        decode_type(whole + bytes(TYPE_BYTES_MAX))


# --- the operators' switch: golden bytes, bounded texts, and what a reader refuses ---------

SWITCH_V1 = TransactionsSwitch(
    is_rejecting=True, at_ms=1_700_000_000_123, who="ada@host-7", reason="the database moves"
)

# Never changed: what was written once must be readable for ever.
SWITCH_GOLDEN = (
    "c301a2981e5349f0e05001f6a1abfef9621461646140686f73742d3724746865206461746162617365206d6f766573"
)


def test_the_bytes_of_the_switch_do_not_change() -> None:
    """What is written and what is read stays the same within a schema version."""
    assert encode_switch(SWITCH_V1).hex() == SWITCH_GOLDEN
    assert decode_switch(bytes.fromhex(SWITCH_GOLDEN)) == SWITCH_V1


def test_texts_are_bounded() -> None:
    """A long reason is cut, and marked as cut; the record fits."""
    data = encode_switch(SWITCH_V1._replace(who="\udcff" * 9_000, reason="ä" * 9_000))
    assert len(data) <= SWITCH_BYTES_MAX
    assert len(decode_switch(data).reason.encode()) <= REASON_BYTES_MAX
    assert decode_switch(data).reason.endswith("(cut)")


def test_what_is_not_a_switch_is_refused() -> None:
    """Cut off anywhere, too long or of a newer schema."""
    whole = bytes.fromhex(SWITCH_GOLDEN)
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_switch(whole[:length])
    with pytest.raises(DecodeError, match="at most"):
        decode_switch(whole + bytes(SWITCH_BYTES_MAX))
    with pytest.raises(UnknownSchemaError):
        decode_switch(whole[:2] + bytes(8) + whole[10:])
