"""Whether a half or op record is believed. Pure: the answer follows from the log and the key file.

Live ledger, rebuild, `checker init`, the operator's commands and the audit ask here, so that they
judge alike. A record is judged by its append time: signatures may be demanded from some time on,
and a signing key is good from one time to another. Where none is demanded, none is looked at.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from halfbridge.serde.errors import DecodeError, NotBelievedError
from halfbridge.serde.headers import SIGN, half_value, without_half
from halfbridge.serde.records import NO_OFFSET
from halfbridge.serde.signatures import (
    SIGNATURE,
    Place,
    half_bytes,
    op_bytes,
    signature_in,
)
from halfbridge.serde.signing_keys import ROLE_OF_SOURCE, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.serde.headers import Header
    from halfbridge.serde.records import HalfMetadata, Op
    from halfbridge.serde.signatures import Signature
    from halfbridge.serde.signing_keys import KeyRing
    from halfbridge.serde.topics import TopicNames

# What a text shows of a key id that a record names.
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
    """Judges the records of one installation.

    Args:
        ring: What the key file says.
        names: The installation's topics.
    """

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
        """Check a half record that `parse_half` has read.

        Args:
            partition: The half partition that it was read from.
            append_ms: Its append time; below 0: not known.
            metadata: What `parse_half` returned.
            headers: All headers of the record.
            key: The record's key.
            value: The record's value.

        Raises:
            NotBelievedError: it is to be treated as a record that cannot be read.
        """
        place = Place(self._ring.installation, self._names.half, partition)

        def signed(signature: Signature) -> bytes:
            return half_bytes(
                place,
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
        """Check an op record that was decoded.

        Args:
            partition: The op partition that it was read from.
            append_ms: Its append time; below 0: not known.
            op: The decoded value.
            headers: Returns the record's headers, or raises DecodeError; called where signatures
                are demanded.
            key: The record's key.
            value: The record's value.

        Raises:
            NotBelievedError: as `check_half`.
        """
        place = Place(self._ring.installation, self._names.op, partition)

        def signed(signature: Signature) -> bytes:
            return op_bytes(
                place,
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
