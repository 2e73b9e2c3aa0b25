"""Records of the audit topic: golden bytes, bounded texts, and what a reader refuses."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from halfbridge.serde.avro import HEADER_BYTES, schema_text
from halfbridge.serde.errors import DecodeError, UnknownSchemaError
from halfbridge.serde.operator_actions import (
    ACTION_BYTES_MAX,
    FIELD_BYTES_MAX,
    decode_action,
    encode_action,
)
from halfbridge.serde.records import ActionOutcome, OperatorAction

ACTION_V1 = OperatorAction(
    action_id="0199f0c0a5c87a0b8f3e2d1c0b9a8877",
    at_ms=1_700_000_000_123,
    who="ada@host-7",
    action="tx commit",
    subject="0199f0c0a5c87a0b8f3e2d1c0b9a8878",
    why="the row is there",
    before="PREPARED",
    after="COMMITTED",
    outcome=ActionOutcome.INTENDED,
)
# Never changed: what was written once must be readable for ever.
GOLDEN = (
    "c301d848af6528563748403031393966306330613563383761306238663365326431633062396138383737f6a1"
    "abfef9621461646140686f73742d3712747820636f6d6d69744030313939663063306135633837613062386633"
    "653264316330623961383837382074686520726f7720697320746865726510505245504152454412434f4d4d49"
    "5454454400"
)


def test_the_bytes_do_not_change() -> None:
    """What is written and what is read stays the same within a schema version."""
    assert encode_action(ACTION_V1).hex() == GOLDEN
    assert decode_action(bytes.fromhex(GOLDEN)) == ACTION_V1


def test_any_avro_library_reads_it() -> None:
    """The body is Avro under the names of the schema, each of which is documented."""
    parsed: Any = fastavro.parse_schema(json.loads(schema_text("operator_action.v1")))
    body = io.BytesIO(bytes.fromhex(GOLDEN)[HEADER_BYTES:])
    row = fastavro.schemaless_reader(body, parsed, None)
    assert tuple(row) == OperatorAction._fields
    assert all(field["doc"] for field in parsed["fields"])


def test_texts_are_bounded() -> None:
    """Whatever an operator or a log says, the record fits; what is cut says so."""
    long = "\udcffä\n" * 10_000
    texts = dict.fromkeys(FIELD_BYTES_MAX, long)
    data = encode_action(ACTION_V1._replace(**texts))
    read = decode_action(data)
    assert len(data) <= ACTION_BYTES_MAX
    for name, most in FIELD_BYTES_MAX.items():
        assert len(getattr(read, name).encode()) <= most
        assert getattr(read, name).endswith("(cut)")


def test_what_is_not_an_action_is_refused() -> None:
    """Cut off anywhere, too long or of a newer schema: an error, and never an action."""
    whole = bytes.fromhex(GOLDEN)
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_action(whole[:length])
    with pytest.raises(DecodeError, match="at most"):
        decode_action(whole + bytes(ACTION_BYTES_MAX))
    with pytest.raises(UnknownSchemaError):
        decode_action(whole[:2] + bytes(8) + whole[10:])
