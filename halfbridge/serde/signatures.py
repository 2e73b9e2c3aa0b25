"""The header RMQ_SIGN, and the bytes that a signature is made of (docs/adr/0019).

Each canonical form is a series of pieces, each with its length in front, so that no two different
records have the same bytes. Large pieces (value, other headers) stand in it as SHA-256 digests.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.serde.avro import Codec
from halfbridge.serde.headers import SIGN
from halfbridge.serde.limits import SIGNATURE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.serde.headers import Header

# The first piece: a signature of a half record is none of an op, nor of a later form.
_HALF_FORM = b"halfbridge half 1"
_OP_FORM = b"halfbridge op 1"
# Length of a piece that is null: no piece is so long.
_NULL = b"\xff" * 8
_LENGTH_BYTES = 8


class Signature(NamedTuple):
    """Header RMQ_SIGN of a half or op record."""

    key_id: str
    signed_at_ms: int
    signature: bytes


class Place(NamedTuple):
    """Where a record belongs: a signature holds in one partition of one installation.

    Attributes:
        installation: Name in the key file: a cluster's or an environment's, with the same topics.
        topic: The half or op topic, with the installation's prefix.
        partition: Number of the pair.
    """

    installation: str
    topic: str
    partition: int


SIGNATURE: Codec[Signature] = Codec(Signature, ("signature.v1",), bytes_max=SIGNATURE_BYTES_MAX)


def half_bytes(
    place: Place,
    *,
    key_id: str,
    signed_at_ms: int,
    metadata: bytes,
    key: bytes | None,
    value: bytes | None,
    others: Iterable[Header],
) -> bytes:
    """Return the canonical bytes of a half record.

    Args:
        place: The half partition.
        key_id: Id of the signing key.
        signed_at_ms: As in the signature.
        metadata: RMQ_HALF as it stands in the record: group, id, life, index, real topic, times.
        key: The record's key.
        value: The record's value.
        others: The record's headers without RMQ_HALF and RMQ_SIGN, in order.
    """
    return _joined(
        (
            _HALF_FORM,
            *_common(place, key_id, signed_at_ms),
            metadata,
            key,
            None if value is None else sha256(value).digest(),
            _digest_of(others),
        )
    )


def op_bytes(
    place: Place, *, key_id: str, signed_at_ms: int, key: bytes | None, value: bytes
) -> bytes:
    """Return the canonical bytes of an op record: its value says all that decides.

    Args:
        place: The op partition.
        key_id: Id of the signing key.
        signed_at_ms: As in the signature.
        key: The record's key.
        value: The encoded op.
    """
    return _joined((_OP_FORM, *_common(place, key_id, signed_at_ms), key, value))


def signature_in(headers: Sequence[Header] | None) -> bytes | None:
    """Return the RMQ_SIGN of a record; None without one, and where there is more than one."""
    found = [value for name, value in headers or () if name == SIGN]
    return found[0] if len(found) == 1 else None


def _common(place: Place, key_id: str, signed_at_ms: int) -> tuple[bytes, ...]:
    return (
        place.installation.encode(),
        place.topic.encode(),
        b"%d" % place.partition,
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
