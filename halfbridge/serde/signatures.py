"""The header RMQ_SIGN: signs half and op records, and verifies them (docs/adr/0019). Pure.

A canonical form is a series of pieces, each preceded by its length, so that different records have
different bytes. Large pieces (value, other headers) are replaced by SHA-256 digests.

Every reader uses `Verifier`, so that all judge alike. A record is judged by its append time:
signatures may be demanded from some time on, and a signing key is valid for a range of time.
Without a demand no signature is verified.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.serde.avro import Codec
from halfbridge.serde.errors import DecodeError, NoSigningKeyError, NotBelievedError
from halfbridge.serde.headers import SIGN, half_value, without_half
from halfbridge.serde.limits import SIGNATURE_BYTES_MAX
from halfbridge.serde.records import NO_OFFSET
from halfbridge.serde.signing_keys import ROLE_OF_SOURCE, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from halfbridge.serde.headers import Header, Headers
    from halfbridge.serde.records import HalfMetadata, Op
    from halfbridge.serde.signing_keys import KeyRing, SigningKey
    from halfbridge.serde.topics import TopicNames

# The first piece: a signature of a half record is none of an op, nor of a later form.
_HALF_FORM = b"halfbridge half 1"
_OP_FORM = b"halfbridge op 1"
# Length of a piece that is null: no piece is so long.
_NULL = b"\xff" * 8
_LENGTH_BYTES = 8  # of a piece: 64 bits, so that no two lists of pieces have the same bytes


class Signature(NamedTuple):
    """Header RMQ_SIGN of a half or op record."""

    key_id: str
    signed_at_ms: int
    signature: bytes


class SigningScope(NamedTuple):
    """Where a record belongs: a signature holds in one partition of one installation.

    Attributes:
        installation: Name in the key file: a cluster's or an environment's, with the same topics.
        topic: The half or op topic, with the installation's prefix.
    """

    installation: str
    topic: str
    partition: int


SIGNATURE: Codec[Signature] = Codec(Signature, ("signature.v1",), bytes_max=SIGNATURE_BYTES_MAX)


def half_bytes(
    scope: SigningScope,
    *,
    key_id: str,
    signed_at_ms: int,
    metadata: bytes,
    key: bytes | None,
    value: bytes | None,
    others: Iterable[Header],
) -> bytes:
    """Return a half record's canonical bytes; `others`: headers but RMQ_HALF and RMQ_SIGN."""
    return _joined(
        (
            _HALF_FORM,
            *_common(scope, key_id, signed_at_ms),
            metadata,
            key,
            None if value is None else sha256(value).digest(),
            _digest_of(others),
        )
    )


def op_bytes(
    scope: SigningScope, *, key_id: str, signed_at_ms: int, key: bytes | None, value: bytes
) -> bytes:
    """Return the canonical bytes of an op record: `value`, the encoded op, says all."""
    return _joined((_OP_FORM, *_common(scope, key_id, signed_at_ms), key, value))


def signature_in(headers: Sequence[Header] | None) -> bytes | None:
    """Return the RMQ_SIGN of a record; None without one, and where there is more than one."""
    found = [value for name, value in headers or () if name == SIGN]
    return found[0] if len(found) == 1 else None


def _common(scope: SigningScope, key_id: str, signed_at_ms: int) -> tuple[bytes, ...]:
    return (
        scope.installation.encode(),
        scope.topic.encode(),
        b"%d" % scope.partition,
        key_id.encode(),
        b"%d" % signed_at_ms,
    )


def _digest_of(headers: Iterable[Header]) -> bytes:
    pieces = (piece for name, value in headers for piece in (name.encode(), value))
    return sha256(_joined(pieces)).digest()


def _joined(pieces: Iterable[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for piece in pieces:
        if piece is None:
            parts.append(_NULL)
        else:
            parts += (len(piece).to_bytes(_LENGTH_BYTES, "big"), piece)
    return b"".join(parts)


class Signer:
    """Signs as one role. Thread-safe: it only reads."""

    def __init__(self, ring: KeyRing, role: Role, names: TopicNames) -> None:
        self._ring = ring
        self._role = role
        self._names = names

    def half(
        self,
        group: str,
        partition: int,
        headers: Sequence[Header],
        *,
        key: bytes | None,
        value: bytes | None,
        now_ms: int,
    ) -> Headers:
        """Return the headers of a half record with its signature, in front of its RMQ_HALF.

        Args:
            group: The producer group.
            partition: The half partition that the record goes to.
            headers: All headers, RMQ_HALF last, without RMQ_SIGN.
            key: The record's key.
            value: The record's value.
            now_ms: The writer's time, ms since 1970.

        Raises:
            NoSigningKeyError: no key may sign now; the owner of the key file adds one.
        """
        signing_key = self._key(group, now_ms)
        data = half_bytes(
            SigningScope(self._ring.installation, self._names.half, partition),
            key_id=signing_key.id,
            signed_at_ms=now_ms,
            metadata=half_value(headers),
            key=key,
            value=value,
            others=headers[:-1],
        )
        return [*headers[:-1], _header(signing_key, now_ms, data), headers[-1]]

    def op(
        self, group: str, partition: int, *, key: bytes | None, value: bytes, now_ms: int
    ) -> Headers:
        """Return the headers of an op record: its signature; arguments and errors as of `half`."""
        signing_key = self._key(group, now_ms)
        data = op_bytes(
            SigningScope(self._ring.installation, self._names.op, partition),
            key_id=signing_key.id,
            signed_at_ms=now_ms,
            key=key,
            value=value,
        )
        return [_header(signing_key, now_ms, data)]

    def check(self, group: str, now_ms: int) -> None:
        """Check that a key may sign for a group now.

        Raises NoSigningKeyError: none may; the owner of the key file adds one.
        """
        self._key(group, now_ms)

    def _key(self, group: str, now_ms: int) -> SigningKey:
        key = self._ring.signer_of(self._role, group, now_ms)
        if key is None:
            raise NoSigningKeyError(
                f"the key file has no key by which a {self._role.value} may sign for group {group}"
                f" at {now_ms} (ms since 1970): add one, and give it to all readers first"
            )
        return key


def _header(key: SigningKey, now_ms: int, data: bytes) -> Header:
    return SIGN, SIGNATURE.encode(Signature(key.id, now_ms, key.sign(data)))


# Characters of a record's key id that a text shows: as many as the id of a key may have.
_SHOWN_CHARS_MAX = 64


class Doubt(str, Enum):
    """Why a record is not believed."""

    UNSIGNED = "unsigned"
    UNREADABLE = "unreadable signature"
    UNKNOWN_KEY = "unknown key"
    ENDED_KEY = "key not valid then"
    FOREIGN_KEY = "key of another role or group"
    STALE = "signed long before or after"
    FORGED = "signature of other bytes"


class Verifier:
    """Judges the records of one installation."""

    def __init__(self, ring: KeyRing, names: TopicNames) -> None:
        self._ring = ring
        self._names = names

    def check_half(
        self,
        partition: int,
        append_ms: int,
        metadata: HalfMetadata,
        *,
        headers: Sequence[Header],
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        """Check a half record (`append_ms` below 0: unknown).

        Raises NotBelievedError: its signature is missing or wrong; the record's writer must act.
        """
        scope = SigningScope(self._ring.installation, self._names.half, partition)

        def signed(signature: Signature) -> bytes:
            return half_bytes(
                scope,
                key_id=signature.key_id,
                signed_at_ms=signature.signed_at_ms,
                metadata=half_value(headers),
                key=key,
                value=value,
                others=without_half(headers),
            )

        role = role_of_half(metadata)
        self._check(role, metadata.producer_group, append_ms, lambda: headers, signed)

    def check_op(
        self,
        partition: int,
        append_ms: int,
        op: Op,
        *,
        headers: Callable[[], Sequence[Header] | None],
        key: bytes | None,
        value: bytes,
    ) -> None:
        """Check an op record as `check_half`; `headers` is called where signatures are demanded."""
        scope = SigningScope(self._ring.installation, self._names.op, partition)

        def signed(signature: Signature) -> bytes:
            return op_bytes(
                scope,
                key_id=signature.key_id,
                signed_at_ms=signature.signed_at_ms,
                key=key,
                value=value,
            )

        self._check(ROLE_OF_SOURCE[op.source], op.producer_group, append_ms, headers, signed)

    def _check(
        self,
        role: Role,
        group: str,
        append_ms: int,
        headers: Callable[[], Sequence[Header] | None],
        signed: Callable[[Signature], bytes],
    ) -> None:
        demands = self._ring.demands_of(group, append_ms)
        if not demands:
            return
        doubt = partial(_doubt, role=role, group=group)
        try:
            data = signature_in(headers())
            signature = None if data is None else SIGNATURE.decode(data)
        except DecodeError as error:
            raise doubt(Doubt.UNREADABLE, more=error.reason) from error
        if signature is None:
            raise doubt(Doubt.UNSIGNED)
        shown = repr(signature.key_id[:_SHOWN_CHARS_MAX])
        key = self._ring.keys.get(signature.key_id)
        if key is None:
            raise doubt(Doubt.UNKNOWN_KEY, more=shown)
        if not key.speaks_for(role, group):
            raise doubt(Doubt.FOREIGN_KEY, more=shown)
        if not key.is_valid_at(append_ms):
            raise doubt(Doubt.ENDED_KEY, more=shown)
        fresh_ms = min((each.fresh_ms for each in demands if each.fresh_ms), default=0)
        distance_ms = append_ms - signature.signed_at_ms
        if fresh_ms and append_ms >= 0 and abs(distance_ms) > fresh_ms:
            raise doubt(Doubt.STALE, more=f"by {distance_ms} ms, at most {fresh_ms}")
        if not key.is_signed(signed(signature), signature.signature):
            raise doubt(Doubt.FORGED, more=shown)


def role_of_half(metadata: HalfMetadata) -> Role:
    """Return who may write such a half record.

    Copies are the daemon's. Lives above 0 are an operator's: he resumes and redelivers.
    """
    if metadata.origin_offset > NO_OFFSET:
        return Role.DAEMON
    return Role.OPERATOR if metadata.resume_count else Role.CLIENT


def _doubt(doubt: Doubt, role: Role, group: str, more: str = "") -> NotBelievedError:
    behind = f" ({more})" if more else ""
    return NotBelievedError(
        f"{SIGN} by the {role.value} is demanded for group {group}: {doubt.value}{behind}", None
    )
