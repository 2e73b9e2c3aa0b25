"""Types of real topics: golden bytes, keys, and what a reader refuses."""

from __future__ import annotations

import pytest

from halfbridge.serde.errors import DecodeError
from halfbridge.serde.settings_topic import (
    TYPE_BYTES_MAX,
    TopicType,
    TopicTypeRecord,
    decode_type,
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
