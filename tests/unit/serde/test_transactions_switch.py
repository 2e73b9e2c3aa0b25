"""The operators' switch: golden bytes, bounded texts, and what a reader refuses."""

from __future__ import annotations

import pytest

from halfbridge.serde.errors import DecodeError, UnknownSchemaError
from halfbridge.serde.settings_topic import (
    REASON_BYTES_MAX,
    SWITCH_BYTES_MAX,
    TransactionsSwitch,
    decode_switch,
    encode_switch,
)

SWITCH_V1 = TransactionsSwitch(
    is_rejecting=True, at_ms=1_700_000_000_123, who="ada@host-7", reason="the database moves"
)
# Never changed: what was written once must be readable for ever.
GOLDEN = (
    "c301a2981e5349f0e05001f6a1abfef9621461646140686f73742d3724746865206461746162617365206d6f766573"
)


def test_the_bytes_do_not_change() -> None:
    """What is written and what is read stays the same within a schema version."""
    assert encode_switch(SWITCH_V1).hex() == GOLDEN
    assert decode_switch(bytes.fromhex(GOLDEN)) == SWITCH_V1


def test_texts_are_bounded() -> None:
    """A long reason is cut, and says so; the record fits."""
    data = encode_switch(SWITCH_V1._replace(who="\udcff" * 9_000, reason="ä" * 9_000))
    assert len(data) <= SWITCH_BYTES_MAX
    assert len(decode_switch(data).reason.encode()) <= REASON_BYTES_MAX
    assert decode_switch(data).reason.endswith("(cut)")


def test_what_is_not_a_switch_is_refused() -> None:
    """Cut off anywhere, too long or of a newer schema."""
    whole = bytes.fromhex(GOLDEN)
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_switch(whole[:length])
    with pytest.raises(DecodeError, match="at most"):
        decode_switch(whole + bytes(SWITCH_BYTES_MAX))
    with pytest.raises(UnknownSchemaError):
        decode_switch(whole[:2] + bytes(8) + whole[10:])
