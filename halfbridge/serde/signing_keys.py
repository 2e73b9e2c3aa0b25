"""Signing keys, and since when signatures are demanded of whom. Pure.

Whether a record is believed follows from the record, its append time, and these. So a file of keys
changes what is to come, and never what was: docs/adr/0019 says which changes are allowed.
"""

from __future__ import annotations

import hmac
import sys
from dataclasses import dataclass, field
from enum import Enum

from halfbridge.serde import ed25519
from halfbridge.serde.records import OpSource

ANY_GROUP = "*"
# End of what never ends.
NEVER_MS = sys.maxsize
# A signer prefers a key that is good for so long before and after now. Its clock may differ from
# the brokers' by minutes, and a record is appended up to seconds after it was signed: a record that
# is appended beyond its key's end is not believed.
MARGIN_MS = 600_000


class Role(str, Enum):
    """What a signing key may say."""

    CLIENT = "client"
    DAEMON = "daemon"
    OPERATOR = "operator"


class Algorithm(str, Enum):
    """How a signing key signs."""

    HMAC_SHA256 = "hmac-sha256"
    ED25519 = "ed25519"


ROLE_OF_SOURCE = {
    OpSource.PRODUCER: Role.CLIENT,
    OpSource.CHECK: Role.CLIENT,
    OpSource.CHECKER: Role.DAEMON,
    OpSource.OPERATOR: Role.OPERATOR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """One key.

    Attributes:
        id: Named in each signature; one key has it, for ever.
        role: What it may say.
        groups: Producer groups that it may speak for; ANY_GROUP: all.
        algorithm: How it signs.
        secret: Of HMAC, for who signs and who verifies.
        public: Of Ed25519, for who verifies.
        private: Of Ed25519, for who signs; empty elsewhere.
        valid_from_ms: First append time of a record that is believed.
        valid_until_ms: First append time of a record that is not believed any more.
    """

    id: str
    role: Role
    groups: frozenset[str]
    algorithm: Algorithm
    secret: bytes = field(default=b"", repr=False)
    public: bytes = b""
    private: bytes = field(default=b"", repr=False)
    valid_from_ms: int = 0
    valid_until_ms: int = NEVER_MS

    @property
    def can_sign(self) -> bool:
        """Whether the part that signs is here."""
        return bool(self.secret or self.private)

    def speaks_for(self, role: Role, group: str) -> bool:
        """Tell whether this key may say what `role` says of a producer group's transactions."""
        return self.role is role and (group in self.groups or ANY_GROUP in self.groups)

    def is_valid_at(self, append_ms: int) -> bool:
        """Tell whether a record that was appended then is believed; a time below 0 is not known.

        Where a time is not known (docs/adr/0010), any key of the file is good.
        """
        return append_ms < 0 or self.valid_from_ms <= append_ms < self.valid_until_ms

    def sign(self, data: bytes) -> bytes:
        """Return the signature of `data`; `can_sign` must hold."""
        if self.algorithm is Algorithm.HMAC_SHA256:
            return hmac.digest(self.secret, data, "sha256")
        return ed25519.sign(self.private, data)

    def is_signed(self, data: bytes, signature: bytes) -> bool:
        """Tell whether `signature` is one of `data` by this key."""
        if self.algorithm is Algorithm.HMAC_SHA256:
            return hmac.compare_digest(hmac.digest(self.secret, data, "sha256"), signature)
        return ed25519.is_signed(self.public, data, signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Signatures are demanded of records of these groups, by their append time.

    Attributes:
        groups: Producer groups; ANY_GROUP: all.
        from_ms: First append time of a record that must be signed.
        until_ms: First append time of a record that need not be.
        fresh_ms: How far `signed_at_ms` may lie from the append time; 0: any distance.
    """

    groups: frozenset[str]
    from_ms: int
    until_ms: int = NEVER_MS
    fresh_ms: int = 0

    def holds(self, group: str, append_ms: int) -> bool:
        """Tell whether it holds for a record of `group` that was appended then.

        Where the append time is not known, it holds, whenever it begins.
        """
        if not (group in self.groups or ANY_GROUP in self.groups):
            return False
        return append_ms < 0 or self.from_ms <= append_ms < self.until_ms


@dataclass(frozen=True, slots=True)
class KeyRing:
    """What a key file says.

    Attributes:
        installation: Part of what is signed: a signature of another installation is none here.
        keys: By id.
        demands: Of whom signatures are demanded, and since when.
    """

    installation: str
    keys: dict[str, SigningKey]
    demands: tuple[Demand, ...] = ()

    def demands_of(self, group: str, append_ms: int) -> list[Demand]:
        """Return the demands that hold for a record of `group` that was appended then."""
        return [each for each in self.demands if each.holds(group, append_ms)]

    def signer_of(self, role: Role, group: str, now_ms: int) -> SigningKey | None:
        """Return the key by which `role` signs for `group` now: the newest; None without one.

        Keys that are good for MARGIN_MS before and after now are preferred.
        """
        mine = [
            key
            for key in self.keys.values()
            if key.can_sign and key.speaks_for(role, group) and key.is_valid_at(now_ms)
        ]
        return max(mine, key=lambda key: _preference(key, now_ms), default=None)

    def end_of(self, role: Role, group: str, now_ms: int) -> int:
        """Return until when `role` can sign for `group` without a gap; `now_ms` where it cannot."""
        at_ms = now_ms
        # Each round passes the end of one key at least.
        for _ in range(len(self.keys)):
            ends = [
                key.valid_until_ms
                for key in self.keys.values()
                if key.speaks_for(role, group) and key.is_valid_at(at_ms)
            ]
            if not ends:
                break
            at_ms = max(ends)
        return at_ms


def _preference(key: SigningKey, now_ms: int) -> tuple[bool, int, str]:
    is_safe = (
        key.valid_from_ms == 0 or key.valid_from_ms + MARGIN_MS <= now_ms
    ) and now_ms + MARGIN_MS < key.valid_until_ms
    return is_safe, key.valid_from_ms, key.id
