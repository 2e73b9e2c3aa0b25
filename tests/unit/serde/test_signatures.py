"""RMQ_SIGN, and the canonical bytes: golden, for readers and writers of every release."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import HALF, SIGN
from halfbridge.serde.limits import SIGNATURE_BYTES_MAX
from halfbridge.serde.signatures import (
    SIGNATURE,
    Place,
    Signature,
    half_bytes,
    op_bytes,
    signature_in,
)
from tests.kit.records import A_HALF, AN_OP, BORN_MS

HALF_PLACE = Place("shop", "RMQ_SYS_TRANS_HALF_TOPIC", 3)
OP_PLACE = Place("shop", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 3)
SECRET = bytes(range(32))
METADATA = HALF_METADATA.encode(A_HALF)
HEADERS = [("trace", b"abc"), ("empty", b""), ("null", None)]

# Test vectors. HMAC-SHA256 with the secret 00 01 ... 1f; what is signed stands in ADR 19.
HALF_SIGNATURE = "2b28b27c740b30c2c394285af26f064309c8561a3476a0233ad8cecd2ba98abd"
OP_SIGNATURE = "90a94295443ad9e59057e528f094006f50cf974919f54958b1993bbdf408e0b3"
SIGN_HEADER = (
    "c301071cd86d5b87f826106f72646572732d3180a0abfef9624090a94295443ad9e59057e528f094"
    "006f50cf974919f54958b1993bbdf408e0b3"
)


def half(**more: object) -> bytes:
    """Return the canonical bytes of a half record, with some arguments replaced."""
    given = {
        "key_id": "orders-1",
        "signed_at_ms": BORN_MS,
        "metadata": METADATA,
        "key": b"42",
        "value": b"two shirts",
        "others": HEADERS,
        **more,
    }
    place = given.pop("place", HALF_PLACE)
    return half_bytes(place, **given)  # type: ignore[arg-type]


def test_the_bytes_of_a_half_record_are_golden() -> None:
    """Whoever signs and whoever verifies must come to the same bytes, whatever their release."""
    assert hmac.digest(SECRET, half(), "sha256").hex() == HALF_SIGNATURE


def test_the_bytes_of_an_op_are_golden() -> None:
    """As for a half record."""
    data = op_bytes(
        OP_PLACE, key_id="orders-1", signed_at_ms=BORN_MS, key=b"0" * 32, value=OP.encode(AN_OP)
    )
    assert hmac.digest(SECRET, data, "sha256").hex() == OP_SIGNATURE


def test_the_header_is_golden() -> None:
    """The value of RMQ_SIGN: single-object encoding of key id, time and signature."""
    signature = Signature("orders-1", BORN_MS, bytes.fromhex(OP_SIGNATURE))
    assert SIGNATURE.encode(signature).hex() == SIGN_HEADER
    assert SIGNATURE.decode(bytes.fromhex(SIGN_HEADER)) == signature


@pytest.mark.parametrize(
    "other",
    [
        {"place": HALF_PLACE._replace(installation="shoq")},
        {"place": HALF_PLACE._replace(topic="x-RMQ_SYS_TRANS_HALF_TOPIC")},
        {"place": HALF_PLACE._replace(partition=4)},
        {"key_id": "orders-2"},
        {"signed_at_ms": BORN_MS + 1},
        {"metadata": HALF_METADATA.encode(A_HALF._replace(resume_count=1))},
        {"metadata": HALF_METADATA.encode(A_HALF._replace(message_index=1))},
        {"metadata": HALF_METADATA.encode(A_HALF._replace(real_topic="other"))},
        {"metadata": HALF_METADATA.encode(A_HALF._replace(origin_offset=7))},
        {"key": None},
        {"key": b""},
        {"value": None},
        {"value": b""},
        {"others": HEADERS[::-1]},
        {"others": HEADERS[:-1]},
        {"others": [*HEADERS[:-1], ("null", b"")]},
        {"others": [("tracea", b"bc"), *HEADERS[1:]]},
    ],
    ids=str,
)
def test_every_part_of_a_half_record_is_signed(other: dict[str, object]) -> None:
    """A record that differs in anything has other bytes; null and empty differ, too."""
    assert half(**other) != half()


def test_a_half_record_and_an_op_never_have_the_same_bytes() -> None:
    """A signature of the one cannot be put on the other, whatever the parts are."""
    place = HALF_PLACE
    as_op = op_bytes(place, key_id="orders-1", signed_at_ms=BORN_MS, key=b"42", value=METADATA)
    assert not half().startswith(as_op)
    assert not as_op.startswith(half()[:30])


def test_a_large_value_counts_by_its_digest() -> None:
    """The bytes to sign stay short, however large the message is."""
    data = half(value=b"x" * 1_000_000)
    assert len(data) == len(half())
    assert hashlib.sha256(b"x" * 1_000_000).digest() in data


def test_one_signature_counts() -> None:
    """None, and more than one, are no signature."""
    assert signature_in(None) is None
    assert signature_in([(HALF, METADATA)]) is None
    assert signature_in([(SIGN, b"a"), (HALF, METADATA)]) == b"a"
    assert signature_in([(SIGN, b"a"), (SIGN, b"a"), (HALF, METADATA)]) is None


def test_a_signature_has_a_longest_size() -> None:
    """A hostile RMQ_SIGN is not decoded beyond the limit; the longest honest one fits."""
    longest = SIGNATURE.encode(Signature("k" * 64, 1 << 62, b"s" * 64))
    assert len(longest) <= SIGNATURE_BYTES_MAX
    with pytest.raises(DecodeError, match="at most"):
        SIGNATURE.decode(longest + b"x" * SIGNATURE_BYTES_MAX)
