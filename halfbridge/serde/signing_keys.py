"""Signing keys, the demands for signatures, and the key file that contains both.

Whether a record is believed follows from the record, its append time, and these. A changed file
therefore affects later records only: docs/adr/0019 says which changes are allowed.

A key file is TOML:

installation = "shop"                 # part of the signed bytes

[[keys]]
id = "orders-2026-11"                 # for ever: another key has another id
role = "client"                       # client, daemon or operator
groups = ["order-service"]            # "*": all groups
algorithm = "ed25519"                 # or "hmac-sha256", with secret = "..."
public = "..."                        # 32 bytes in base64
private = "..."                       # only in the signer's file
valid_from_ms = 0                     # append times, ms since 1970
valid_until_ms = 1796083200000        # left out: for ever

[[demands]]
groups = ["*"]
from_ms = 1764547200000
fresh_ms = 300000                     # left out: signatures do not expire
"""

from __future__ import annotations

import binascii
import hmac
import re
import sys
from base64 import b64decode
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, cast

from halfbridge.serde import ed25519
from halfbridge.serde.errors import KeyFileError
from halfbridge.serde.records import OpSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

ANY_GROUP = "*"
# End of what never ends.
NEVER_MS = sys.maxsize
# A signer prefers a key that is valid for this time before and after now. Its clock may differ from
# the brokers' by minutes, and a record is appended up to seconds after it was signed: a record that
# is appended beyond its key's end is not believed.
MARGIN_MS = 600_000


class Role(str, Enum):
    """The records that a signing key may sign."""

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
        groups: Producer groups that it may speak for; ANY_GROUP: all.
        secret: HMAC's, to sign and to verify.
        public: Ed25519's, to verify.
        private: Ed25519's, to sign; empty elsewhere.
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
        """Tell whether it holds for a record of `group` of that append time, or of no known one."""
        if not (group in self.groups or ANY_GROUP in self.groups):
            return False
        return append_ms < 0 or self.from_ms <= append_ms < self.until_ms


@dataclass(frozen=True, slots=True)
class KeyRing:
    """A key file's content; another `installation`'s signatures are not valid here."""

    installation: str
    keys: dict[str, SigningKey]
    demands: tuple[Demand, ...] = ()

    def demands_of(self, group: str, append_ms: int) -> list[Demand]:
        """Return the demands that hold for a record of `group` that was appended then."""
        return [each for each in self.demands if each.holds(group, append_ms)]

    def signer_of(self, role: Role, group: str, now_ms: int) -> SigningKey | None:
        """Return the newest key by which `role` signs now, preferably one good for MARGIN_MS."""
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


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib
E = TypeVar("E", Role, Algorithm)
# Half as long as the key of HMAC-SHA256 may be without being hashed first; RFC 2104 asks for 32.
SECRET_BYTES_MIN = 32
KEYS_MAX = 1_000  # a group has two at a time: its old key and its new one
DEMANDS_MAX = 1_000  # one a group, for as many groups as there are keys
# Clocks of clients may be off by seconds, and a send may take ten: less refuses honest records.
FRESH_MS_MIN = 60_000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FILE = ("installation", "keys", "demands")
_KEY = (
    *("id", "role", "groups", "algorithm", "secret", "public", "private"),
    *("valid_from_ms", "valid_until_ms"),
)
_DEMAND = ("groups", "from_ms", "until_ms", "fresh_ms")


def load_key_file(path: Path) -> KeyRing:
    """Return the content of a key file; KeyFileError: its owner corrects it."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise KeyFileError(
            f"{path}: a readable TOML file is needed; this one: {error}", path=str(path)
        ) from error
    try:
        return key_ring(table)
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}", path=str(path)) from error


def key_ring(table: Mapping[str, object]) -> KeyRing:
    """Return the content of a key file's table; KeyFileError: the file's owner corrects it."""
    _refuse_unknown(table, _FILE, "the file")
    keys: dict[str, SigningKey] = {}
    for each in _tables(table, "keys", KEYS_MAX):
        key = _key(each)
        if key.id in keys:
            raise KeyFileError(f"two keys have the id {key.id}")
        keys[key.id] = key
    demands = tuple(map(_demand, _tables(table, "demands", DEMANDS_MAX)))
    return KeyRing(_name(table, "installation", "the file"), keys, demands)


def _key(table: Mapping[str, object]) -> SigningKey:
    key_id = _name(table, "id", "a key")
    where = f"key {key_id}"
    _refuse_unknown(table, _KEY, where)
    algorithm = _word(table, "algorithm", Algorithm, where)
    secret, public, private = (_bytes(table, name, where) for name in _KEY[4:7])
    if algorithm is Algorithm.HMAC_SHA256:
        if public or private or len(secret) < SECRET_BYTES_MIN:
            raise KeyFileError(
                f"{where}: {algorithm.value} has a secret of {SECRET_BYTES_MIN} bytes at least,"
                " and neither public nor private"
            )
    else:
        public = _checked_pair(secret, public, private, where)
    since, until = _span(table, "valid_from_ms", "valid_until_ms", where)
    return SigningKey(
        id=key_id,
        role=_word(table, "role", Role, where),
        groups=_groups(table, where),
        algorithm=algorithm,
        secret=secret,
        public=public,
        private=private,
        valid_from_ms=since,
        valid_until_ms=until,
    )


def _checked_pair(secret: bytes, public: bytes, private: bytes, where: str) -> bytes:
    """Return the public part of an Ed25519 key."""
    ed25519.check_installed()
    sizes = {len(part) for part in (public, private) if part}
    if secret or sizes != {ed25519.KEY_BYTES}:
        raise KeyFileError(
            f"{where}: ed25519 has a public or private part of {ed25519.KEY_BYTES} bytes, or both,"
            " and no secret"
        )
    if not private:
        return public
    belongs = ed25519.public_of(private)
    if public and public != belongs:
        raise KeyFileError(f"{where}: its public part is not that of its private one")
    return belongs


def _demand(table: Mapping[str, object]) -> Demand:
    where = "a demand"
    _refuse_unknown(table, _DEMAND, where)
    if "from_ms" not in table:
        raise KeyFileError(f"{where} needs from_ms, an append time in ms since 1970")
    since, until = _span(table, "from_ms", "until_ms", where)
    fresh_ms = _number(table, "fresh_ms", 0, where)
    if 0 < fresh_ms < FRESH_MS_MIN:
        raise KeyFileError(f"{where}: fresh_ms is 0 or {FRESH_MS_MIN} at least")
    return Demand(groups=_groups(table, where), from_ms=since, until_ms=until, fresh_ms=fresh_ms)


def _tables(
    table: Mapping[str, object], name: str, count_max: int
) -> Iterable[Mapping[str, object]]:
    tables = table.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise KeyFileError(f"{name}: tables [[{name}]]")
    if len(tables) > count_max:
        raise KeyFileError(f"{name}: {len(tables)}, at most {count_max}")
    return tables


def _refuse_unknown(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    unknown = sorted(table.keys() - set(known))
    if unknown:
        raise KeyFileError(f"{where}: {unknown[0]!r} is none of {', '.join(known)}")


def _name(table: Mapping[str, object], field: str, where: str) -> str:
    name = table.get(field)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise KeyFileError(
            f"{where} needs {field}: at most 64 letters, digits, '.', '_' and '-', not {name!r}"
        )
    return name


def _word(table: Mapping[str, object], field: str, words: type[E], where: str) -> E:
    try:
        return words(table.get(field))
    except ValueError as error:
        allowed = ", ".join(each.value for each in words)
        raise KeyFileError(f"{where} needs {field}: {allowed}") from error


def _groups(table: Mapping[str, object], where: str) -> frozenset[str]:
    groups = table.get("groups")
    if not (
        isinstance(groups, list)
        and groups
        and all(isinstance(each, str) and each for each in groups)
    ):
        raise KeyFileError(f'{where} needs groups: producer groups, or ["{ANY_GROUP}"]')
    return frozenset(groups)


def _bytes(table: Mapping[str, object], field: str, where: str) -> bytes:
    text = table.get(field, "")
    try:
        return b64decode(cast("str", text), validate=True)  # else a TypeError
    except (TypeError, ValueError, binascii.Error) as error:
        raise KeyFileError(f"{where}: {field} is no base64") from error


def _number(table: Mapping[str, object], field: str, default: int, where: str) -> int:
    value = table.get(field, default)
    if type(value) is not int or value < 0:
        raise KeyFileError(f"{where}: {field} is a whole number of milliseconds, 0 or more")
    return value


def _span(table: Mapping[str, object], first: str, last: str, where: str) -> tuple[int, int]:
    since, until = _number(table, first, 0, where), _number(table, last, NEVER_MS, where)
    if since >= until:
        raise KeyFileError(f"{where}: {last} is not after {first}")
    return since, until
