"""Reads a key file: TOML with the signing keys of an installation, and the demands.

installation = "shop"                 # part of what is signed

[[keys]]
id = "orders-2026-11"                 # for ever: another key has another id
role = "client"                       # client, daemon or operator
groups = ["order-service"]            # "*" stands for all
algorithm = "ed25519"                 # or "hmac-sha256", with secret = "..."
public = "..."                        # 32 bytes in base64
private = "..."                       # in the file of who signs only
valid_from_ms = 0                     # append times, ms since 1970
valid_until_ms = 1796083200000        # left out: for ever

[[demands]]
groups = ["*"]
from_ms = 1764547200000
fresh_ms = 300000                     # left out: signatures do not grow old
"""

from __future__ import annotations

import binascii
import re
import sys
from base64 import b64decode
from typing import TYPE_CHECKING, Any, TypeVar

from halfbridge.serde import ed25519
from halfbridge.serde.errors import KeyFileError
from halfbridge.serde.signing_keys import (
    ANY_GROUP,
    NEVER_MS,
    Algorithm,
    Demand,
    KeyRing,
    Role,
    SigningKey,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

E = TypeVar("E", Role, Algorithm)

# Half as long as the key of HMAC-SHA256 may be without being hashed first; RFC 2104 asks for 32.
SECRET_BYTES_MIN = 32
KEYS_MAX = 1_000
DEMANDS_MAX = 1_000
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
    """Return what a key file says.

    Raises:
        KeyFileError: it cannot be read, or what it says is not allowed; its owner corrects it.
    """
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise KeyFileError(f"{path}: a readable TOML file is needed; this one: {error}") from error
    try:
        return key_ring(table)
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}") from error


def key_ring(table: Mapping[str, Any]) -> KeyRing:
    """Return what the table of a key file says.

    Raises:
        KeyFileError: it is not allowed; the owner of the file corrects it.
    """
    _refuse_unknown(table, _FILE, "the file")
    keys: dict[str, SigningKey] = {}
    for each in _tables(table, "keys", KEYS_MAX):
        key = _key(each)
        if key.id in keys:
            raise KeyFileError(f"two keys have the id {key.id}")
        keys[key.id] = key
    demands = tuple(map(_demand, _tables(table, "demands", DEMANDS_MAX)))
    return KeyRing(_name(table, "installation", "the file"), keys, demands)


def _key(table: Mapping[str, Any]) -> SigningKey:
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


def _demand(table: Mapping[str, Any]) -> Demand:
    where = "a demand"
    _refuse_unknown(table, _DEMAND, where)
    if "from_ms" not in table:
        raise KeyFileError(f"{where} needs from_ms, an append time in ms since 1970")
    since, until = _span(table, "from_ms", "until_ms", where)
    fresh_ms = _number(table, "fresh_ms", 0, where)
    if 0 < fresh_ms < FRESH_MS_MIN:
        raise KeyFileError(f"{where}: fresh_ms is 0 or {FRESH_MS_MIN} at least")
    return Demand(groups=_groups(table, where), from_ms=since, until_ms=until, fresh_ms=fresh_ms)


def _tables(table: Mapping[str, Any], name: str, count_max: int) -> Iterable[Mapping[str, Any]]:
    tables = table.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise KeyFileError(f"{name}: tables [[{name}]]")
    if len(tables) > count_max:
        raise KeyFileError(f"{name}: {len(tables)}, at most {count_max}")
    return tables


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    unknown = sorted(table.keys() - set(known))
    if unknown:
        raise KeyFileError(f"{where}: {unknown[0]!r} is none of {', '.join(known)}")


def _name(table: Mapping[str, Any], field: str, where: str) -> str:
    name = table.get(field)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise KeyFileError(
            f"{where} needs {field}: at most 64 letters, digits, '.', '_' and '-', not {name!r}"
        )
    return name


def _word(table: Mapping[str, Any], field: str, words: type[E], where: str) -> E:
    try:
        return words(table.get(field))
    except ValueError as error:
        allowed = ", ".join(each.value for each in words)
        raise KeyFileError(f"{where} needs {field}: {allowed}") from error


def _groups(table: Mapping[str, Any], where: str) -> frozenset[str]:
    groups = table.get("groups")
    texts = isinstance(groups, list) and all(isinstance(each, str) and each for each in groups)
    if not groups or not texts:
        raise KeyFileError(f'{where} needs groups: producer groups, or ["{ANY_GROUP}"]')
    return frozenset(groups)


def _bytes(table: Mapping[str, Any], field: str, where: str) -> bytes:
    text = table.get(field, "")
    try:
        return b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise KeyFileError(f"{where}: {field} is no base64") from error


def _number(table: Mapping[str, Any], field: str, default: int, where: str) -> int:
    value = table.get(field, default)
    if type(value) is not int or value < 0:
        raise KeyFileError(f"{where}: {field} is a whole number of milliseconds, 0 or more")
    return value


def _span(table: Mapping[str, Any], first: str, last: str, where: str) -> tuple[int, int]:
    since, until = _number(table, first, 0, where), _number(table, last, NEVER_MS, where)
    if since >= until:
        raise KeyFileError(f"{where}: {last} lies behind {first}")
    return since, until
