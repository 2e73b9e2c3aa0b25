"""RMQ_SIGN, and the canonical bytes: golden, for readers and writers of every release."""

import hashlib
import hmac
from typing import Any

import pytest

from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.errors import DecodeError, NoSigningKeyError, NotBelievedError
from halfbridge.serde.headers import HALF, SIGN, Headers, parse_half
from halfbridge.serde.limits import SIGNATURE_BYTES_MAX
from halfbridge.serde.records import HalfMetadata, Op, OpKind, OpSource
from halfbridge.serde.signatures import (
    SIGNATURE,
    Doubt,
    Signature,
    Signer,
    SigningScope,
    Verifier,
    half_bytes,
    op_bytes,
    role_of_half,
    signature_in,
)
from halfbridge.serde.signing_keys import KeyRing, Role
from halfbridge.serde.topics import TopicNames
from tests.kit.records import A_HALF, AN_OP, BORN_MS, GROUP
from tests.kit.signing import a_key, a_ring, secret

HALF_PLACE = SigningScope("shop", "RMQ_SYS_TRANS_HALF_TOPIC", 3)
OP_PLACE = SigningScope("shop", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 3)
SECRET = bytes(range(32))
METADATA = HALF_METADATA.encode(A_HALF)
HEADERS = [("trace", b"abc"), ("empty", b""), ("null", None)]

# Test vectors. HMAC-SHA256 with the secret 00 01 ... 1f; ADR 19 says what is signed.
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
    return half_bytes(place, **given)


def test_the_bytes_of_a_half_record_are_golden() -> None:
    """Signer and verifier must compute the same bytes, in any pair of releases."""
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


# --- which records are believed, by the log and the key file alone -------------------------

NAMES = TopicNames("shop-")
HOUR_MS = 3_600_000
KEY, VALUE = b"42", b"two shirts"
COPY = A_HALF._replace(origin_offset=7, first_append_timestamp=BORN_MS, check_times=1)
RESUMED = A_HALF._replace(resume_count=1)
ED25519 = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="  # RFC 8032, test 1


def signed(
    ring: KeyRing, metadata: HalfMetadata, *, role: Role | None = None, partition: int = 3
) -> Headers:
    """Return the headers of a half record, signed by who may write it, or by `role`."""
    signer = Signer(ring, role or role_of_half(metadata), NAMES)
    return signer.half(
        metadata.producer_group,
        partition,
        [("trace", b"1"), (HALF, HALF_METADATA.encode(metadata))],
        key=KEY,
        value=VALUE,
        now_ms=BORN_MS,
    )


def check(ring: KeyRing, headers: Headers, **more: Any) -> None:
    """Verify a half record of partition 3 that was appended at BORN_MS; `more` replaces."""
    given: dict[str, Any] = {"key": KEY, "value": VALUE, **more}
    partition, append_ms = given.pop("partition", 3), given.pop("append_ms", BORN_MS)
    metadata, _ = parse_half(headers)
    names = given.pop("names", NAMES)
    Verifier(ring, names).check_half(partition, append_ms, metadata, headers=headers, **given)


def signed_op(ring: KeyRing, op: Op, *, role: Role = Role.CLIENT, partition: int = 3) -> Headers:
    """Return the headers of an op record."""
    return Signer(ring, role, NAMES).op(
        op.producer_group, partition, key=b"id", value=OP.encode(op), now_ms=BORN_MS
    )


def check_op(
    ring: KeyRing, op: Op, headers: Headers, *, append_ms: int = BORN_MS, partition: int = 3
) -> None:
    """Verify an op record."""
    Verifier(ring, NAMES).check_op(
        partition, append_ms, op, headers=lambda: headers, key=b"id", value=OP.encode(op)
    )


@pytest.mark.parametrize("metadata", [A_HALF, COPY, RESUMED], ids=["original", "copy", "resumed"])
def test_what_its_writer_signed_is_believed(metadata: HalfMetadata) -> None:
    """A client's original, the daemon's copy, an operator's next life."""
    ring = a_ring()
    check(ring, signed(ring, metadata))


@pytest.mark.parametrize(
    ("source", "role"),
    [
        (OpSource.PRODUCER, Role.CLIENT),
        (OpSource.CHECK, Role.CLIENT),
        (OpSource.CHECKER, Role.DAEMON),
        (OpSource.OPERATOR, Role.OPERATOR),
    ],
)
def test_each_source_has_its_role(source: OpSource, role: Role) -> None:
    """An op is believed from the role of its source, and from no other."""
    ring, op = a_ring(), AN_OP._replace(source=source)
    check_op(ring, op, signed_op(ring, op, role=role))
    for other in set(Role) - {role}:
        with pytest.raises(NotBelievedError, match=Doubt.FOREIGN_KEY.value):
            check_op(ring, op, signed_op(ring, op, role=other))


@pytest.mark.parametrize("metadata", [A_HALF, COPY, RESUMED], ids=["original", "copy", "resumed"])
def test_half_records_have_one_role_each(metadata: HalfMetadata) -> None:
    """A client can write no copy and no next life, the daemon and operators no original."""
    ring = a_ring()
    for other in set(Role) - {role_of_half(metadata)}:
        with pytest.raises(NotBelievedError, match=Doubt.FOREIGN_KEY.value):
            check(ring, signed(ring, metadata, role=other))


def test_nothing_is_verified_where_none_is_demanded() -> None:
    """Before the demand, and for groups without one, any record is believed, signed or not."""
    demands = [{"groups": ["bills"], "from_ms": BORN_MS}]
    ring = a_ring(demands=demands)
    plain = [(HALF, HALF_METADATA.encode(A_HALF))]
    check(ring, plain)
    bills = [(SIGN, b"?"), (HALF, HALF_METADATA.encode(A_HALF._replace(producer_group="bills")))]
    check(ring, bills, append_ms=BORN_MS - 1)
    with pytest.raises(NotBelievedError, match=Doubt.UNREADABLE.value):
        check(ring, bills)


def test_a_demand_begins_and_ends_by_append_time() -> None:
    """The first append time of a demand is inside, the end is outside."""
    span = {"groups": [GROUP], "from_ms": BORN_MS, "until_ms": BORN_MS + HOUR_MS}
    ring, plain = a_ring(demands=[span]), [(HALF, HALF_METADATA.encode(A_HALF))]
    check(ring, plain, append_ms=BORN_MS - 1)
    check(ring, plain, append_ms=BORN_MS + HOUR_MS)
    for inside in (BORN_MS, BORN_MS + HOUR_MS - 1):
        with pytest.raises(NotBelievedError, match=Doubt.UNSIGNED.value):
            check(ring, plain, append_ms=inside)


def test_without_an_append_time_a_signature_is_demanded() -> None:
    """While a topic was CreateTime nobody knows the time: any demand holds, any key is good."""
    ring = a_ring(
        a_key("client", valid_until_ms=BORN_MS),
        demands=[{"groups": ["*"], "from_ms": BORN_MS + HOUR_MS}],
    )
    with pytest.raises(NotBelievedError, match=Doubt.UNSIGNED.value):
        check(ring, [(HALF, HALF_METADATA.encode(A_HALF))], append_ms=-1)
    valid = a_ring(a_key("client"))
    check(ring, signed(valid, A_HALF), append_ms=-1)


@pytest.mark.parametrize(
    "attack",
    [
        {"value": b"two hundred shirts"},
        {"value": None},
        {"key": b"43"},
        {"partition": 4},
        {"names": TopicNames("shoq-")},
    ],
    ids=str,
)
def test_a_changed_or_moved_half_record_is_not_believed(attack: dict[str, Any]) -> None:
    """Another payload, key, pair or installation: the signature is of other bytes."""
    ring = a_ring()
    with pytest.raises(NotBelievedError, match=Doubt.FORGED.value):
        check(ring, signed(ring, A_HALF), **attack)


def test_another_installation_of_the_same_topics_is_another() -> None:
    """Two clusters with the same prefix and the same keys: a signature holds in one of them."""
    here, there = a_ring(), a_ring()
    there = KeyRing("shop-test", there.keys, there.demands)
    with pytest.raises(NotBelievedError, match=Doubt.FORGED.value):
        check(here, signed(there, A_HALF))


@pytest.mark.parametrize(
    "other",
    [
        {"resume_count": 1},
        {"message_index": 1},
        {"real_topic": "bank"},
        {"real_partition": 1},
        {"immunity_ms": 1},
        {"transaction_id": "1" * 32},
        {"born_timestamp": BORN_MS + 1},
    ],
    ids=str,
)
def test_a_signature_put_on_another_record_is_none(other: dict[str, Any]) -> None:
    """The signature of a record cannot be used for another one."""
    ring = a_ring(*(a_key(role, id="one", secret=secret("s")) for role in ("client",)))
    stolen = next(header for header in signed(ring, A_HALF) if header[0] == SIGN)
    forged = [("trace", b"1"), stolen, (HALF, HALF_METADATA.encode(A_HALF._replace(**other)))]
    with pytest.raises(NotBelievedError):
        check(ring, forged)


@pytest.mark.parametrize(
    "headers",
    [
        [("trace", b"2")],
        [],
        [("trace", b"1"), ("trace", b"1")],
        [("trace", b"1"), (HALF, HALF_METADATA.encode(A_HALF._replace(real_topic="bank")))],
    ],
)
def test_other_headers_are_signed(headers: Headers) -> None:
    """Headers are delivered: one changed, removed, repeated or added is noticed."""
    ring = a_ring()
    _, *ours = signed(ring, A_HALF)
    with pytest.raises(NotBelievedError, match=Doubt.FORGED.value):
        check(ring, [*headers, *ours])


@pytest.mark.parametrize(
    "other",
    [
        {"kind": OpKind.ROLLBACK},
        {"half_offset": 9},
        {"message_count": 1},
        {"check_number": 1},
        {"resume_count": 1},
        {"transaction_id": "1" * 32},
        {"age_ms": 1},
        {"reason": "x"},
    ],
    ids=str,
)
def test_every_field_of_an_op_is_signed(other: dict[str, Any]) -> None:
    """A signed COMMIT cannot be made another decision, of another life or transaction."""
    ring = a_ring()
    with pytest.raises(NotBelievedError, match=Doubt.FORGED.value):
        check_op(ring, AN_OP._replace(**other), signed_op(ring, AN_OP))


def test_an_op_cannot_be_moved() -> None:
    """An op of pair 3 is none in pair 4."""
    ring = a_ring()
    with pytest.raises(NotBelievedError, match=Doubt.FORGED.value):
        check_op(ring, AN_OP, signed_op(ring, AN_OP), partition=4)


def test_a_key_of_another_group_is_foreign() -> None:
    """A client's key of one group decides nothing of another group."""
    ring = a_ring(a_key("client", groups=["bills"]))
    op = AN_OP._replace(producer_group="bills")
    headers = signed_op(ring, op)
    check_op(ring, op, headers)
    with pytest.raises(NotBelievedError, match=Doubt.FOREIGN_KEY.value):
        check_op(ring, AN_OP, headers)


def test_a_key_is_good_from_one_time_to_another() -> None:
    """A key that was rotated out signs nothing that is appended later; older records stay valid."""
    ring = a_ring(a_key("client", valid_from_ms=BORN_MS, valid_until_ms=BORN_MS + HOUR_MS))
    headers = signed_op(ring, AN_OP)
    check_op(ring, AN_OP, headers)
    for outside in (BORN_MS - 1, BORN_MS + HOUR_MS):
        with pytest.raises(NotBelievedError, match=Doubt.ENDED_KEY.value):
            check_op(ring, AN_OP, headers, append_ms=outside)


def test_signatures_grow_old_where_the_demand_says_so() -> None:
    """A record that somebody kept, and appends again next day, is not believed."""
    ring = a_ring(demands=[{"groups": ["*"], "from_ms": 0, "fresh_ms": HOUR_MS}])
    headers = signed_op(ring, AN_OP)
    check_op(ring, AN_OP, headers, append_ms=BORN_MS + HOUR_MS)
    for stale in (BORN_MS + HOUR_MS + 1, BORN_MS - HOUR_MS - 1):
        with pytest.raises(NotBelievedError, match=Doubt.STALE.value):
            check_op(ring, AN_OP, headers, append_ms=stale)


def test_the_key_says_the_algorithm() -> None:
    """An HMAC made with a public key, which everybody has, is no Ed25519 signature."""
    ed = a_key("client", id="one", algorithm="ed25519", private=ED25519, secret="")
    ring = a_ring(ed)
    check(ring, signed(ring, A_HALF))
    public = ring.keys["one"].public
    forger = a_ring(a_key("client", id="one"))
    object.__setattr__(forger.keys["one"], "secret", public)
    with pytest.raises(NotBelievedError, match=Doubt.FORGED.value):
        check(ring, signed(forger, A_HALF))


@pytest.mark.parametrize(
    ("header", "doubt"),
    [
        (b"", Doubt.UNREADABLE),
        (b"\xc3\x01" + b"x" * 20, Doubt.UNREADABLE),
        (SIGNATURE.encode(Signature("nobody", BORN_MS, b"x" * 32)), Doubt.UNKNOWN_KEY),
        (SIGNATURE.encode(Signature("client-1", BORN_MS, b"")), Doubt.FORGED),
        (SIGNATURE.encode(Signature("client-1", BORN_MS, b"x" * 64)), Doubt.FORGED),
    ],
)
def test_junk_is_no_signature(header: bytes, doubt: Doubt) -> None:
    """The verifier answers for any content of RMQ_SIGN."""
    ring = a_ring()
    with pytest.raises(NotBelievedError, match=doubt.value):
        check(ring, [(SIGN, header), (HALF, HALF_METADATA.encode(A_HALF))])


def test_an_op_whose_headers_cannot_be_read_is_not_believed() -> None:
    """Where signatures are demanded; elsewhere its headers are not asked for."""

    def headers() -> Headers:
        raise DecodeError("a header name is not UTF-8", None)

    value = OP.encode(AN_OP)
    with pytest.raises(NotBelievedError, match="not UTF-8"):
        Verifier(a_ring(), NAMES).check_op(3, 1, AN_OP, headers=headers, key=b"", value=value)
    Verifier(a_ring(demands=[]), NAMES).check_op(3, 1, AN_OP, headers=headers, key=b"", value=value)


def test_a_signer_takes_the_newest_key_that_is_safe() -> None:
    """A key is taken ten minutes after it begins, and left ten minutes before it ends."""
    now_ms, minute_ms = BORN_MS, 60_000
    ring = a_ring(
        a_key("client", id="old", valid_until_ms=now_ms + 30 * minute_ms),
        a_key("client", id="new", valid_from_ms=now_ms),
    )

    def used(at_ms: int) -> str:
        key = ring.signer_of(Role.CLIENT, GROUP, at_ms)
        return "" if key is None else key.id

    assert used(now_ms - 1) == "old"
    assert used(now_ms + 9 * minute_ms) == "old"
    assert used(now_ms + 10 * minute_ms) == "new"
    assert used(now_ms + 60 * minute_ms) == "new"
    assert ring.end_of(Role.CLIENT, GROUP, now_ms) > now_ms + 1_000 * HOUR_MS


def test_a_key_that_is_about_to_end_is_taken_rather_than_none() -> None:
    """Nobody can tell whose clock is right: the log judges."""
    ring = a_ring(a_key("client", valid_until_ms=BORN_MS + 1))
    assert ring.signer_of(Role.CLIENT, GROUP, BORN_MS) is not None
    assert ring.end_of(Role.CLIENT, GROUP, BORN_MS) == BORN_MS + 1
    with pytest.raises(NoSigningKeyError, match="client may sign for group orders"):
        Signer(ring, Role.CLIENT, NAMES).check(GROUP, BORN_MS + 1)
