"""Signs half and op records of one writer. Pure: the writer's time is an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.errors import NoSigningKeyError
from halfbridge.serde.headers import SIGN, half_value
from halfbridge.serde.signatures import SIGNATURE, Place, Signature, half_bytes, op_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.serde.headers import Header, Headers
    from halfbridge.serde.signing_keys import KeyRing, Role, SigningKey
    from halfbridge.serde.topics import TopicNames


class Signer:
    """Signs as one role. Thread-safe: it only reads.

    Args:
        ring: What the key file says.
        role: Who signs.
        names: The installation's topics.
    """

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
            Place(self._ring.installation, self._names.half, partition),
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
        """Return the headers of an op record: its signature.

        Args:
            group: The producer group.
            partition: The op partition that the record goes to.
            key: The record's key.
            value: The encoded op.
            now_ms: The writer's time, ms since 1970.

        Raises:
            NoSigningKeyError: as `half`.
        """
        signing_key = self._key(group, now_ms)
        data = op_bytes(
            Place(self._ring.installation, self._names.op, partition),
            key_id=signing_key.id,
            signed_at_ms=now_ms,
            key=key,
            value=value,
        )
        return [_header(signing_key, now_ms, data)]

    def check(self, group: str, now_ms: int) -> None:
        """Check that a key may sign for a group now.

        Raises:
            NoSigningKeyError: as `half`.
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
