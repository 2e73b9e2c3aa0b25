"""What a record's headers say, and what they must not say."""

import pytest

from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import (
    BORN_TIMESTAMP,
    CHECK,
    CONTEXT,
    DEAD,
    HALF,
    MESSAGE_INDEX,
    RESERVED,
    TRANSACTION_ID,
    Header,
    headers_of,
    parse_half,
    real_headers,
    real_identity,
    trace_id_of,
    user_headers,
    without_half,
)
from halfbridge.serde.limits import IDENTITY_BYTES_MAX, ORIGINAL_METADATA_BYTES_MAX
from halfbridge.serde.records import OpKind, OpSource
from tests.kit.records import AN_OP
from tests.playbook import metadata

METADATA = metadata("A")
MINE = (HALF, HALF_METADATA.encode(METADATA))


class _Record:
    """What the Kafka client hands over, as far as headers go."""

    def __init__(self, headers: object) -> None:
        self._headers = headers

    def headers(self) -> object:
        """Return or raise what the client would."""
        if isinstance(self._headers, Exception):
            raise self._headers
        return self._headers


def test_metadata_is_found_at_any_position() -> None:
    """Last, where client and daemon put it, or anywhere else."""
    assert parse_half([MINE]) == (METADATA, "")
    assert parse_half([("a", b"1"), MINE]) == (METADATA, "")
    assert parse_half([MINE, ("a", None)]) == (METADATA, "")


@pytest.mark.parametrize("headers", [None, [], [("a", b"1")], [(HALF, None)]])
def test_a_half_without_metadata_is_reported(
    headers: list[tuple[str, bytes | None]] | None,
) -> None:
    """A record that somebody else wrote into the half topic."""
    with pytest.raises(DecodeError, match="no RMQ_HALF header"):
        parse_half(headers)


@pytest.mark.parametrize(
    "fields",
    [{"transaction_id": ""}, {"message_index": -1}, {"producer_group": ""}, {"real_topic": ""}],
)
def test_metadata_that_names_nothing_is_reported(fields: dict[str, object]) -> None:
    """Without id, index, group or real topic nothing could ever be done with it."""
    data = HALF_METADATA.encode(METADATA._replace(**fields))
    with pytest.raises(DecodeError, match="names no transaction, message index") as caught:
        parse_half([(HALF, data)])
    assert caught.value.data == data


def test_a_group_that_cannot_be_asked_is_reported() -> None:
    """Its check topic or group would be one of the daemon's own, here or elsewhere."""
    data = HALF_METADATA.encode(METADATA._replace(producer_group="RMQ_SYS_TRANS"))
    with pytest.raises(DecodeError, match="cannot be asked"):
        parse_half([(HALF, data)])


def test_broken_metadata_is_reported() -> None:
    """The codec's own error comes through."""
    with pytest.raises(DecodeError, match="not in single-object encoding"):
        parse_half([(HALF, b"x")])


@pytest.mark.parametrize("name", [CHECK, DEAD, TRANSACTION_ID, BORN_TIMESTAMP, MESSAGE_INDEX])
def test_a_reserved_name_is_a_flaw(name: str) -> None:
    """A forged internal header is read, and keeps the message from ever being delivered."""
    assert parse_half([(name, b"1"), MINE]) == (METADATA, f"reserved header {name}")
    assert name in RESERVED


def test_a_copy_of_a_flawed_half_has_the_flaw() -> None:
    """Only the header that counts is replaced, at any position."""
    user = ("h", b"1")
    assert without_half([user, MINE]) == [user]
    assert without_half([MINE, user]) == [user]
    assert parse_half([*without_half([MINE, user, MINE]), MINE])[1]


def test_two_half_headers_are_a_flaw() -> None:
    """Nobody can tell which one is meant."""
    assert parse_half([MINE, MINE]) == (METADATA, "more than one RMQ_HALF header")


def test_a_context_is_none_two_are() -> None:
    """What the sender leaves for its checker is allowed once."""
    context = (CONTEXT, b"whatever")
    assert parse_half([context, MINE]) == (METADATA, "")
    assert parse_half([context, context, MINE]) == (METADATA, "more than one RMQ_CONTEXT header")
    assert CONTEXT in RESERVED


def test_the_users_headers_are_untouched() -> None:
    """Order, repeats, empty and null values stay as they were given."""
    theirs = [("b", b""), ("a", None), ("b", b"\xff")]
    assert user_headers([theirs[0], MINE, *theirs[1:]]) == theirs
    assert user_headers([*theirs, (CONTEXT, b"internal"), MINE]) == theirs
    added = [*theirs, ("__transactionId__", b"id"), ("__bornTimestamp__", b"17")]
    assert real_headers(theirs, "id", 17) == real_headers(theirs, "id", 17, 0) == added
    assert real_headers(theirs, "id", 17, 999) == [*added, ("__messageIndex__", b"999")]


@pytest.mark.parametrize("index", [0, 1, 9, 10, 999, 2**31 - 1])
def test_a_real_record_tells_its_identity(index: int) -> None:
    """Transaction id and index, whatever the user's headers are; the last of a name counts."""
    theirs = [(TRANSACTION_ID, b"forged"), ("null", None)]
    assert real_identity(real_headers(theirs, "id", 17, index)) == ("id", index)


@pytest.mark.parametrize("headers", [None, [], [("mine", b"1")], [(TRANSACTION_ID, None)]])
def test_another_producers_record_has_no_identity(headers: list[Header] | None) -> None:
    """Without an id an index says nothing."""
    assert real_identity(headers) is None
    assert real_identity([*(headers or ()), (MESSAGE_INDEX, b"1")]) is None


@pytest.mark.parametrize("text", [None, b"", b"0", b"01", b"-1", b"+1", b"1_0", b" 1", b"9" * 11])
def test_an_index_that_the_daemon_does_not_write_is_no_index(text: bytes | None) -> None:
    """Two spellings of one index would be two messages to a consumer that deduplicates."""
    with pytest.raises(DecodeError, match="__messageIndex__ is no number"):
        real_identity([(TRANSACTION_ID, b"id"), (MESSAGE_INDEX, text)])


def test_an_id_that_is_no_text_is_reported() -> None:
    """No client of ours writes it."""
    with pytest.raises(DecodeError, match="not UTF-8"):
        real_identity([(TRANSACTION_ID, b"\xff")])


def test_headers_come_as_the_client_hands_them_over() -> None:
    """None stays None."""
    assert headers_of(_Record(None)) is None
    assert headers_of(_Record([MINE])) == [MINE]


@pytest.mark.parametrize(
    "error", [SystemError("broken"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")]
)
def test_a_header_name_that_is_no_text_is_reported(error: Exception) -> None:
    """The client cannot say what it is; the record is unreadable, the reader lives on."""
    with pytest.raises(DecodeError, match="not UTF-8") as caught:
        headers_of(_Record(error))
    assert caught.value.__cause__ is error


def test_a_half_message_leaves_room_for_its_copy_and_its_discard() -> None:
    """What the daemon writes about it has to be readable in turn."""
    longest = METADATA._replace(transaction_id="i" * (IDENTITY_BYTES_MAX - 1), producer_group="g")
    assert parse_half([(HALF, HALF_METADATA.encode(longest))])[0] == longest
    with pytest.raises(DecodeError, match=f"id and group of {IDENTITY_BYTES_MAX + 1} bytes"):
        parse_half([(HALF, HALF_METADATA.encode(longest._replace(producer_group="gg")))])
    room = ORIGINAL_METADATA_BYTES_MAX - len(HALF_METADATA.encode(METADATA))
    full = METADATA._replace(real_topic=METADATA.real_topic + "t" * (room - 1))
    assert len(HALF_METADATA.encode(full)) == ORIGINAL_METADATA_BYTES_MAX
    assert parse_half([(HALF, HALF_METADATA.encode(full))])[0] == full
    largest = (1 << 31) - 1, (1 << 63) - 1, (1 << 63) - 1
    copy = full._replace(
        check_times=largest[0], first_append_timestamp=largest[1], origin_offset=largest[2]
    )
    assert parse_half([(HALF, HALF_METADATA.encode(copy))])[0] == copy
    more = full._replace(real_topic=full.real_topic + "t")
    with pytest.raises(DecodeError, match=f"at most {ORIGINAL_METADATA_BYTES_MAX}"):
        parse_half([(HALF, HALF_METADATA.encode(more))])
    op = AN_OP._replace(
        transaction_id=longest.transaction_id,
        timestamp=largest[1],
        half_offset=largest[1],
        resume_count=largest[0],
        producer_group=longest.producer_group,
        kind=OpKind.DISCARD,
        check_number=largest[0],
        source=OpSource.CHECKER,
        actor="a" * 500,
        reason="CHECK_TIMES",
        age_ms=largest[1],
    )
    assert OP.decode(OP.encode(op)) == op


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        (b"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later", True),
        (b"00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        (b"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", False),
        (b"nonsense", False),
        (None, False),
    ],
)
def test_the_trace_of_a_message(value: bytes | None, *, found: bool) -> None:
    """As W3C Trace Context has it, of any version; anybody may write the header."""
    headers = [("other", b"v"), ("traceparent", value)]
    assert trace_id_of(headers) == ("0af7651916cd43dd8448eb211c80319c" if found else "")
    assert trace_id_of(None) == ""
