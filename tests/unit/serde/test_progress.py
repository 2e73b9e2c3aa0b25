"""What is committed beside the offsets, and when it cannot be trusted."""

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from halfbridge.serde.avro import HEADER_BYTES, schema_text
from halfbridge.serde.errors import DecodeError, SerdeError, UnknownSchemaError
from halfbridge.serde.manifest import (
    BATCH_MANIFEST,
    BatchManifest,
    ManifestAttempt,
    ManifestKind,
    ManifestTransaction,
)
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
    """A worker that is upgraded continues, whatever budget of waiting its predecessor had spent."""
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
    """The record fits with any text of an operator or a log; a cut text is marked."""
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


# --- the nested record of the Spark sink: golden bytes, and errors ------------------------

ID = "0199f0c0a5c87a0b8f3e2d1c0b9a8877"
MANIFEST = BatchManifest(
    app_id="orders",
    batch_id=17,
    kind=ManifestKind.COMMIT,
    searched_from=41,
    first_append_timestamp=1_700_000_000_456,
    age_ms_max=86_400_000,
    row_count=3,
    content_hash="00" * 15 + "ff",
    query_id="f117c46c-c849-4aac-860a-537877b2f388",
    plan_hash="5e" * 32,
    refused_count=2,
    dead_letter_offsets=(0, 300),
    dead_letter_topic_id="kdBCsXeNQL2yK7Kj9PTVwA",
    timestamp=1_700_000_001_123,
    producer_group="spark-orders",
    actor="pod-7",
    reason="",
    attempts=(
        ManifestAttempt(
            "ab" * 16, (ManifestTransaction(ID, 3, 2, 41), ManifestTransaction(ID[::-1], 0, 1, 7))
        ),
        ManifestAttempt("cd" * 16, ()),
    ),
)

# Never changed: what was written once must be readable for ever.
MANIFEST_GOLDEN = (
    "c30142a1691a1ffa38d00c6f726465727322005290a7abfef96280f0b252064030303030303030303030303030"
    "303030303030303030303030303030303066664866313137633436632d633834392d346161632d383630612d35"
    "333738373762326633383880013565356535653565356535653565356535653565356535653565356535653565"
    "3565356535653565356535653565356535653565356535653565356535653565040400d804002c6b6442437358"
    "654e514c32794b374b6a395054567741c6b1abfef96218737061726b2d6f72646572730a706f642d3700044061"
    "626162616261626162616261626162616261626162616261626162616261620440303139396630633061356338"
    "376130623866336532643163306239613838373706045240373738386139623063316432653366386230613738"
    "633561306330663939313000020e00406364636463646364636463646364636463646364636463646364636463"
    "6463640000"
)

# Read, and no longer written: what a later version added is not known of them.
MANIFEST_V2 = MANIFEST._replace(dead_letter_topic_id="")
GOLDEN_V2 = (
    "c30130776e3aa2f038e20c6f726465727322005290a7abfef96280f0b252064030303030303030303030303030"
    "303030303030303030303030303030303066664866313137633436632d633834392d346161632d383630612d35"
    "333738373762326633383880013565356535653565356535653565356535653565356535653565356535653565"
    "3565356535653565356535653565356535653565356535653565356535653565040400d80400c6b1abfef96218"
    "737061726b2d6f72646572730a706f642d37000440616261626162616261626162616261626162616261626162"
    "616261626162616204403031393966306330613563383761306238663365326431633062396138383737060452"
    "40373738386139623063316432653366386230613738633561306330663939313000020e004063646364636463"
    "646364636463646364636463646364636463646364636463640000"
)
MANIFEST_V1 = MANIFEST_V2._replace(
    query_id="", plan_hash="", refused_count=0, dead_letter_offsets=()
)
GOLDEN_V1 = (
    "c30150fc0c2b72f2f00f0c6f726465727322005290a7abfef96280f0b252064030303030303030303030303030"
    "30303030303030303030303030303030306666c6b1abfef96218737061726b2d6f72646572730a706f642d3700"
    "044061626162616261626162616261626162616261626162616261626162616261620440303139396630633061"
    "356338376130623866336532643163306239613838373706045240373738386139623063316432653366386230"
    "613738633561306330663939313000020e00406364636463646364636463646364636463646364636463646364"
    "6364636463640000"
)


@pytest.mark.parametrize(
    ("golden", "manifest"),
    [(GOLDEN_V2, MANIFEST_V2), (GOLDEN_V1, MANIFEST_V1)],
    ids=["version 2", "version 1"],
)
def test_the_versions_before_are_read(golden: str, manifest: BatchManifest) -> None:
    """A query that was upgraded finds the batches that it had published."""
    data = bytes.fromhex(golden)
    assert BATCH_MANIFEST.decode(data) == manifest
    assert BATCH_MANIFEST.decode_head(data) == manifest._replace(attempts=())


def test_the_bytes_of_a_manifest_do_not_change() -> None:
    """What is written and what is read stays the same within a schema version."""
    assert BATCH_MANIFEST.encode(MANIFEST).hex() == MANIFEST_GOLDEN
    assert BATCH_MANIFEST.decode(bytes.fromhex(MANIFEST_GOLDEN)) == MANIFEST


def test_a_head_is_all_but_the_attempts() -> None:
    """Also where these are cut off: they are not looked at."""
    head = MANIFEST._replace(attempts=())
    data = bytes.fromhex(MANIFEST_GOLDEN)
    assert BATCH_MANIFEST.decode_head(data) == head
    assert BATCH_MANIFEST.decode_head(data[:-40]) == head
    for broken in (b"", data[:9], data[:40], b"\xc3\x01" + bytes(40)):
        with pytest.raises(SerdeError):
            BATCH_MANIFEST.decode_head(broken)


def test_any_avro_library_reads_a_manifest() -> None:
    """Nested records come out under the names that the schema gives them."""
    body = io.BytesIO(bytes.fromhex(MANIFEST_GOLDEN)[HEADER_BYTES:])
    row = fastavro.schemaless_reader(body, BATCH_MANIFEST.schema, None)
    assert list(row) == list(MANIFEST._fields)
    assert row["attempts"][0]["transactions"][1]["half_offset"] == 7


def test_truncated_bytes_are_reported() -> None:
    """Cut off anywhere, the bytes are refused and kept."""
    whole = bytes.fromhex(MANIFEST_GOLDEN)
    for length in range(len(whole)):
        with pytest.raises(DecodeError) as caught:
            BATCH_MANIFEST.decode(whole[:length])
        assert caught.value.data == whole[:length]
