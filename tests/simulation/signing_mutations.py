"""Planted defects of what signs and verifies; noticed in runs where signatures are demanded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.checker.loop.publish import Publisher
from halfbridge.serde import signatures
from halfbridge.serde.records import NO_OFFSET
from halfbridge.serde.signatures import Verifier
from halfbridge.serde.signing_keys import SigningKey
from tests.simulation.mutation import Mutation

if TYPE_CHECKING:
    from halfbridge.checker.core.plan import PutBack
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.serde.records import HalfMetadata
    from halfbridge.serde.signatures import SigningScope

_check_half = Verifier.check_half
_put_back = Publisher._put_back
_common = signatures._common


def _believe(*_: Any, **__: Any) -> None:
    """Believe any record."""


def _believe_copies(
    self: Verifier, partition: int, append_ms: int, metadata: HalfMetadata, **more: Any
) -> None:
    if metadata.origin_offset == NO_OFFSET:
        _check_half(self, partition, append_ms, metadata, **more)


def _put_back_unsigned(self: Publisher, put_back: PutBack, now_ms: int, signed_ms: int) -> Outgoing:
    self._signer = None
    return _put_back(self, put_back, now_ms, signed_ms)


def _without_partition(place: SigningScope, key_id: str, signed_at_ms: int) -> tuple[bytes, ...]:
    return _common(place._replace(partition=0), key_id, signed_at_ms)


def _any_key(self: SigningKey, *_: Any) -> bool:
    return bool(self.id)


SIGNING = (
    Mutation(
        "ops believed without a signature", 20, ((Verifier, "check_op", _believe),), is_signed=True
    ),
    Mutation(
        "halves believed without a signature",
        20,
        ((Verifier, "check_half", _believe),),
        is_signed=True,
    ),
    Mutation(
        "copies believed without a signature",
        40,
        ((Verifier, "check_half", _believe_copies),),
        is_signed=True,
    ),
    Mutation(
        "copies not signed", 20, ((Publisher, "_put_back", _put_back_unsigned),), is_signed=True
    ),
    Mutation(
        "partition not signed",
        40,
        ((signatures, "_common", _without_partition),),
        is_signed=True,
        begin=5,
    ),
    Mutation(
        "key of any role and group believed",
        40,
        ((SigningKey, "speaks_for", _any_key),),
        is_signed=True,
    ),
)
