"""What is committed beside the offsets, and when it cannot be trusted."""

import io
import json
from dataclasses import replace
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
from halfbridge.serde.progress import START, Progress, ProgressError, parse_progress
from halfbridge.serde.records import ActionOutcome, OperatorAction

PROGRESS = Progress(half=3, op=9, rebuild_to=8, ops_from=5, position=7)


def test_the_text_is_short_readable_ascii() -> None:
    """The metadata names version, H, R, T, P, an unused number and a checksum."""
    assert PROGRESS.metadata() == "v1;3;8;5;7;0;097b05fb"
    assert START.metadata().startswith("v1;0;0;0;0;0;")
    largest = Progress(*[(1 << 63) - 1] * 5, deferred=((1 << 63) - 2,))
    assert largest.metadata().isascii()
    assert len(largest.metadata()) < 160


def test_deferred_ops_are_named_by_their_differences() -> None:
    """The first offset is whole, so that a thousand of them fit into Kafka's limit."""
    deferring = replace(PROGRESS, op=1_300, ops_from=1_200, deferred=(1_200, 1_203, 1_220))
    text = deferring.metadata()
    assert text.startswith("v1;3;8;1200;7;0;1200,3,17;")
    assert parse_progress(3, 1_300, text) == deferring


def test_what_was_committed_is_read_back() -> None:
    """Parsing returns the progress that was written."""
    assert parse_progress(3, 9, PROGRESS.metadata()) == PROGRESS
    assert parse_progress(0, 0, START.metadata()) == START


@pytest.mark.parametrize("text", ["v1;3;8;5;7;fb35cda1", "v1;3;8;5;7;12;29a8dfdd"])
def test_what_earlier_releases_committed_is_read(text: str) -> None:
    """A worker that is upgraded goes on, whatever budget of waiting its predecessor had spent."""
    assert parse_progress(3, 9, text) == PROGRESS


@pytest.mark.parametrize(
    ("half", "op", "metadata", "complaint"),
    [
        (-1001, 9, PROGRESS.metadata(), "no committed offset"),
        (3, -1001, PROGRESS.metadata(), "no committed offset"),
        (3, 9, None, "without metadata"),
        (3, 9, "", "without metadata"),
        (3, 9, "v2;3;8;5;7;0", "unknown version 'v2'"),
        (3, 9, "v1;3;8;5;7;29a8dfdd", "damaged"),
        (3, 9, "v1;3;8;5;7;12;29a8dfd0", "damaged"),
        (3, 9, "v1;3;8;5;7;13;29a8dfdd", "damaged"),
        (3, 10, PROGRESS.metadata(), "not of this offset"),
        (4, 9, PROGRESS.metadata(), "differs from H=3"),
        (8, 9, Progress(8, 9, 7, 5, 7).metadata(), "contradicts itself"),
        (3, 9, Progress(3, 9, 6, 5, 7).metadata(), "contradicts itself"),
        (3, 9, Progress(3, 9, 8, 10, 7).metadata(), "contradicts itself"),
        (3, 9, replace(PROGRESS, deferred=(4,)).metadata(), "contradicts itself"),
        (3, 9, replace(PROGRESS, deferred=(9,)).metadata(), "contradicts itself"),
        (3, 9, replace(PROGRESS, deferred=(6, 6)).metadata(), "contradicts itself"),
    ],
)
def test_what_cannot_be_trusted_stops(
    half: int, op: int, metadata: str | None, complaint: str
) -> None:
    """Missing, damaged, newer or contradictory progress is an error that says what is wrong."""
    with pytest.raises(ProgressError, match=complaint):
        parse_progress(half, op, metadata)


# --- records of the audit topic: golden bytes, bounded texts, and what a reader refuses ----

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
