"""Bytes on the wire: golden for each schema version, equal to fastavro's; errors of broken ones."""

import io
from typing import Any

import fastavro
import pytest

from halfbridge.serde.avro import (
    CHECK_REQUEST,
    DEAD_LETTER,
    DEAD_MARK,
    FENCE_CONTEXT,
    HALF_METADATA,
    HEADER_BYTES,
    MARKER,
    OP,
    SINK_CONTEXT,
    TAIL_BYTES_MAX,
    TAILS_BYTES_MAX,
    TAILS_MAX,
    Codec,
    DeadMark,
    MarkAction,
    half_metadata_series,
    read_long,
    schema_fingerprint,
    schema_text,
    write_long,
)
from halfbridge.serde.errors import DecodeError, UnknownSchemaError
from halfbridge.serde.limits import METADATA_BYTES_MAX, OP_BYTES_MAX
from halfbridge.serde.records import (
    CheckRequest,
    DeadDecision,
    DeadLetter,
    DeadReason,
    FenceContext,
    HalfMetadata,
    Op,
    OpKind,
    OpSource,
    SinkContext,
)

ID = "0199f0c0a5c87a0b8f3e2d1c0b9a8877"
HALF_V1 = HalfMetadata(
    transaction_id=ID,
    born_timestamp=1_700_000_000_123,
    resume_count=0,
    message_index=1,
    producer_group="orders-service",
    real_topic="orders",
    real_partition=-1,
    check_times=3,
    immunity_ms=60_000,
    first_append_timestamp=1_700_000_000_456,
    origin_offset=41,
)
OP_V1 = Op(
    transaction_id=ID,
    timestamp=1_700_000_001_123,
    half_offset=42,
    resume_count=0,
    producer_group="orders-service",
    kind=OpKind.UNKNOWN,
    message_count=-1,
    check_number=4,
    source=OpSource.CHECK,
    actor="pod-7",
    reason="no row",
    age_ms=259_200_000,
)
CHECK_V1 = CheckRequest(
    transaction_id=ID,
    sent_timestamp=1_700_000_002_123,
    half_offset=42,
    half_partition=3,
    resume_count=0,
    message_index=0,
    producer_group="orders-service",
    real_topic="orders",
    real_partition=-1,
    check_number=4,
    attempt=2,
    born_timestamp=1_700_000_000_123,
    last_half_offset=44,
)
DEAD_V1 = DeadLetter(
    reason=DeadReason.CHECK_TIMES,
    detail="15 answers",
    check_times=15,
    decided_timestamp=1_700_000_003_123,
    op_offset=77,
    source_topic="RMQ_SYS_TRANS_HALF_TOPIC",
    source_partition=3,
    source_offset=42,
)
DEAD_V2 = DEAD_V1._replace(
    reason=DeadReason.TOO_LARGE, detail="", decision=DeadDecision.COMMIT, is_stub=True
)

# Never changed: what was written once must be readable for ever. A new schema version adds one.
GOLDEN = [
    pytest.param(
        HALF_METADATA,
        HALF_V1,
        "c301d53f4e9470b2cae64030313939663063306135633837613062386633653264316330623961383837"
        "37f6a1abfef96200021c6f72646572732d736572766963650c6f72646572730106c0a90790a7abfef96252",
        id="half_metadata.v1",
    ),
    pytest.param(
        OP,
        OP_V1,
        "c30100ca8dd44ed296c540303139396630633061356338376130623866336532643163306239613838"
        "3737c6b1abfef96254001c6f72646572732d73657276696365040108020a706f642d370c6e6f20726f77"
        "80d098f701",
        id="op.v1",
    ),
    pytest.param(
        CHECK_REQUEST,
        CHECK_V1,
        "c301b6d28ebb90df87b64030313939663063306135633837613062386633653264316330623961383837"
        "3796c1abfef962540600001c6f72646572732d736572766963650c6f7264657273010804f6a1abfef962"
        "58",
        id="check_request.v1",
    ),
    pytest.param(
        DEAD_LETTER,
        DEAD_V2,
        "c3019b8dca6988fd484f12001ee6d0abfef9629a0130524d515f5359535f5452414e535f48414c465f54"
        "4f50494306540201",
        id="dead_letter.v2",
    ),
    pytest.param(
        SINK_CONTEXT,
        SinkContext(app_id="orders", batch_id=17, attempt_id=ID),
        "c3012cb8b4713b1f49a70c6f7264657273224030313939663063306135633837613062386633653264316330"
        "62396138383737",
        id="sink_context.v1",
    ),
    pytest.param(
        DEAD_MARK,
        DeadMark(
            transaction_id=ID,
            timestamp=1_700_000_000_000,
            action=MarkAction.REDELIVERED,
            letter_offset=7,
            resume_count=1,
            actor="ann@host",
            reason="topic was missing",
        ),
        "c30149a0438bb9bf1725403031393966306330613563383761306238663365326431633062396138"
        "38373780a0abfef962020e0210616e6e40686f737422746f70696320776173206d697373696e67",
        id="dead_mark.v1",
    ),
    pytest.param(
        FENCE_CONTEXT,
        FenceContext(table_id="5a1d0c0e-7f2b-4b7e-9d55-0b6c1f6f2a10"),
        "c301d1a509206f7f757d4835613164306330652d376632622d346237652d396435352d3062366331"
        "66366632613130",
        id="fence_context.v1",
    ),
]

# Versions that are read and no longer written, as the newest record: what they lack has defaults.
OLDER = [
    pytest.param(
        DEAD_LETTER,
        DEAD_V1,
        "c3012ed8e5a7acd3610e0014313520616e73776572731ee6d0abfef9629a0130524d515f5359535f5452"
        "414e535f48414c465f544f5049430654",
        id="dead_letter.v1",
    )
]
RECORDS = [pytest.param(*case.values[:2], id=case.id) for case in GOLDEN]


@pytest.mark.parametrize(("codec", "record", "golden"), GOLDEN)
def test_each_version_has_its_bytes(codec: Codec[Any], record: Any, golden: str) -> None:
    """What is written and what is read does not change within a schema version."""
    assert codec.encode(record).hex() == golden
    assert codec.decode(bytes.fromhex(golden)) == record


@pytest.mark.parametrize(("codec", "record", "golden"), OLDER)
def test_the_version_before_is_read(codec: Codec[Any], record: Any, golden: str) -> None:
    """A reader of version n reads n-1, and writes n."""
    assert codec.decode(bytes.fromhex(golden)) == record
    assert codec.encode(record).hex() != golden


@pytest.mark.parametrize(
    ("codec", "record", "bytes_max"),
    [(HALF_METADATA, HALF_V1, METADATA_BYTES_MAX), (OP, OP_V1, OP_BYTES_MAX)],
)
def test_what_is_longer_than_the_limit_is_not_decoded(
    codec: Codec[Any], record: Any, bytes_max: int
) -> None:
    """A record of exactly the limit is read, one byte more is refused."""
    room = bytes_max - len(codec.encode(record)) - 1  # the text's length takes a byte more
    longest = record._replace(producer_group=record.producer_group + "x" * room)
    assert len(codec.encode(longest)) == bytes_max
    assert codec.decode(codec.encode(longest)) == longest
    with pytest.raises(DecodeError, match=f"{bytes_max + 1} bytes, at most {bytes_max}"):
        codec.decode(codec.encode(longest._replace(producer_group=longest.producer_group + "x")))


@pytest.mark.parametrize(("codec", "record", "golden"), GOLDEN)
def test_bytes_are_single_object_encoding(codec: Codec[Any], record: Any, golden: str) -> None:
    """Marker, little-endian fingerprint, and a body that any Avro library reads."""
    data = bytes.fromhex(golden)
    assert data[:2] == MARKER
    assert data[2:HEADER_BYTES] == codec.fingerprint
    row = fastavro.schemaless_reader(io.BytesIO(data[HEADER_BYTES:]), codec.schema, None)
    assert list(row) == list(record._fields)
    assert tuple(row.values()) == record


def test_fingerprints_are_those_of_the_specification() -> None:
    """The CRC-64-AVRO of the Avro specification's own test vectors, least byte first."""
    assert schema_fingerprint("int") == (0x7275D51A3F395C8F).to_bytes(8, "little")
    assert schema_fingerprint("string") == (0x8F014872634503C7).to_bytes(8, "little")


@pytest.mark.parametrize(("codec", "record"), RECORDS)
def test_fields_stand_in_the_schemas_order(codec: Codec[Any], record: Any) -> None:
    """A record has the newest schema's fields in its order, and the schema tells each of them."""
    assert [field["name"] for field in codec.schema["fields"]] == list(record._fields)
    assert all(field["doc"] for field in codec.schema["fields"])


@pytest.mark.parametrize(("codec", "record"), RECORDS)
def test_truncated_bytes_are_reported(codec: Codec[Any], record: Any) -> None:
    """Cut off anywhere, the bytes are refused, and kept in the error."""
    whole = codec.encode(record)
    codec.decode(whole)
    for length in range(len(whole)):
        with pytest.raises(DecodeError) as caught:
            codec.decode(whole[:length])
        assert caught.value.data == whole[:length]
        assert caught.value.reason == str(caught.value)
        assert type(record).__name__ in caught.value.reason


@pytest.mark.parametrize(("codec", "record"), RECORDS)
def test_trailing_bytes_are_reported(codec: Codec[Any], record: Any) -> None:
    """A record is all that its bytes say, or it is refused."""
    data = codec.encode(record) + b"\0"
    with pytest.raises(DecodeError, match="bytes after the body") as caught:
        codec.decode(data)
    assert caught.value.data == data


@pytest.mark.parametrize("data", [b"", b"\xc3", b"\x00\x01", b'{"json": true}', b"\xc3\x02" * 9])
def test_a_wrong_marker_is_reported(data: bytes) -> None:
    """What is not in single-object encoding is refused before anything else."""
    with pytest.raises(DecodeError, match="HalfMetadata: not in single-object encoding"):
        HALF_METADATA.decode(data)


def test_an_unknown_fingerprint_is_reported() -> None:
    """A newer writer's record names the schema that this reader lacks."""
    data = MARKER + b"\1\2\3\4\5\6\7\x08" + HALF_METADATA.encode(HALF_V1)[HEADER_BYTES:]
    with pytest.raises(UnknownSchemaError, match="0102030405060708") as caught:
        HALF_METADATA.decode(data)
    assert caught.value.fingerprint == "0102030405060708"
    assert caught.value.data == data


def test_another_records_bytes_are_reported() -> None:
    """An op in the place of half metadata is an unknown schema, not garbage."""
    with pytest.raises(UnknownSchemaError):
        HALF_METADATA.decode(OP.encode(OP_V1))


@pytest.mark.parametrize(
    ("position", "forged"),
    [
        (HEADER_BYTES, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"),  # an id of 2**62 bytes
        (HEADER_BYTES, b"\x01"),  # an id of -1 bytes
        (HEADER_BYTES + 1, b"\xff"),  # an id that is not UTF-8
    ],
)
def test_forged_lengths_are_reported(position: int, forged: bytes) -> None:
    """No length is believed beyond the bytes that are there."""
    data = OP.encode(OP_V1)
    data = data[:position] + forged + data[position + 1 :]
    with pytest.raises(DecodeError, match="Op: broken body") as caught:
        OP.decode(data)
    assert caught.value.data == data


def test_a_long_never_grows_beyond_64_bits() -> None:
    """A forged long that Avro could not write again must not reach code that copies the record."""
    data = HALF_METADATA.encode(HALF_V1)
    id_end = HEADER_BYTES + 1 + len(ID)
    forged = data[:id_end] + b"\xff" * 9 + b"\x62" + data[id_end + 6 :]
    for _ in range(2):
        born = HALF_METADATA.decode(forged).born_timestamp
        assert -(1 << 63) <= born < 1 << 63
    HALF_METADATA.encode(HALF_METADATA.decode(forged))


@pytest.mark.parametrize(("codec", "record"), RECORDS)
def test_an_int_never_grows_beyond_32_bits(codec: Codec[Any], record: Any) -> None:
    """Others refuse it or read another number; one that just fits is read. No memo lets it by."""
    ints = [each["name"] for each in codec.schema["fields"] if each["type"] == "int"]
    assert len(ints) >= {FenceContext: 0, SinkContext: 0, DeadMark: 1}.get(type(record), 2)
    for name in ints:
        for number in (-(1 << 31), (1 << 31) - 1):
            fits = record._replace(**{name: number})
            assert codec.decode(codec.encode(fits)) == fits
        for number in (-(1 << 31) - 1, 1 << 31, 1 << 33, (1 << 63) - 1):
            forged = codec.encode(record._replace(**{name: number}))
            for _ in range(2):
                with pytest.raises(DecodeError, match="an int of more than 32 bits") as caught:
                    codec.decode(forged)
                assert caught.value.data == forged


@pytest.mark.parametrize(("codec", "longs"), [(HALF_METADATA, 1), (OP, 2)])
def test_the_fields_before_the_tail_are_longs(codec: Codec[Any], longs: int) -> None:
    """The memo reads them itself, and looks at no limit of an int."""
    types = [field["type"] for field in codec.schema["fields"]]
    assert types[: 1 + longs] == ["string", *["long"] * longs]


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-64, "7f"),
        (64, "8001"),
        ((1 << 63) - 1, "feffffffffffffffff01"),
        (-(1 << 63), "ffffffffffffffffff01"),
    ],
)
def test_longs_are_zigzag(value: int, data: str) -> None:
    """As the Avro specification has them."""
    assert write_long(value).hex() == data
    assert read_long(bytes.fromhex("aa" + data), 1) == (value, 1 + len(data) // 2)


def test_a_broken_long_is_reported() -> None:
    """One that ends too soon, and ones that are too long."""
    with pytest.raises(IndexError):
        read_long(b"\x80", 0)
    for data in (b"\x80" * 11, b"\xff" * 9 + b"\x62"):
        with pytest.raises(ValueError, match="more than 64 bits"):
            read_long(data, 0)


def test_a_field_that_does_not_fit_is_the_callers_error() -> None:
    """Nothing is written in place of what was not given."""
    with pytest.raises((TypeError, ValueError)):
        DEAD_LETTER.encode(DEAD_V1._replace(detail=None))


def test_the_memo_never_grows_without_bound() -> None:
    """Tails that do not repeat empty it; the bytes stay right."""
    codec: Codec[Op] = Codec(Op, ("op.v1",), memo_longs=2)
    for number in range(TAILS_MAX + 2):
        op = OP_V1._replace(reason=str(number), timestamp=number)
        assert codec.decode(codec.encode(op)) == op
    assert max(len(codec._tail_bytes), len(codec._tail_rows)) <= TAILS_MAX
    assert max(len(codec._stamp_bytes), len(codec._stamps)) <= TAILS_MAX


def test_the_memo_is_bounded_in_bytes_too() -> None:
    """Any writer can choose names: 8,192 tails of 4 KB would be 32 MB, four times over."""
    codec: Codec[Op] = Codec(Op, ("op.v1",), memo_longs=2)
    fits, too_long = "r" * (TAIL_BYTES_MAX - 60), "r" * TAIL_BYTES_MAX
    for number in range(TAILS_BYTES_MAX // TAIL_BYTES_MAX + 200):
        op = OP_V1._replace(reason=f"{number:05}{fits}")
        assert codec.decode(codec.encode(op)) == op
        assert max(codec._tail_bytes.size_bytes, codec._tail_rows.size_bytes) <= TAILS_BYTES_MAX
    assert sum(map(len, codec._tail_rows)) == codec._tail_rows.size_bytes > 0
    tails = list(codec._tail_rows)
    op = OP_V1._replace(reason=too_long)
    assert codec.decode(codec.encode(op)) == op
    assert list(codec._tail_rows) == tails


def test_a_series_is_what_the_codec_writes() -> None:
    """Messages that differ in their index only get the same bytes for less work."""
    first = HALF_V1._replace(message_index=0)
    encoded = half_metadata_series(first)
    for index in (0, 1, 63, 64, 999, 8_192):
        assert encoded(index) == HALF_METADATA.encode(first._replace(message_index=index))
    with pytest.raises(ValueError, match="begins with message 0"):
        half_metadata_series(HALF_V1)


def test_schema_texts_are_there_for_spark() -> None:
    """`from_avro` takes the text of a schema."""
    assert '"name": "HalfMetadata"' in schema_text("half_metadata.v1")
