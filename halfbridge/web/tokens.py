"""Who may use the HTTP server: bearer tokens from a file, each with a role.

One line a token: the role (`read` or `operate`), the token, and a name for the audit log. Empty
lines and lines that begin with `#` are left out. Example:

    read     u6Dk0cQ1Xw3m9TzB5rYp2nLh   grafana
    operate  Zp8sV4eN7aKj1RfM6tWc3yGq   alice
"""

from __future__ import annotations

import hmac
import logging
import os
import stat
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING

from halfbridge.kafka.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# 16 characters of base64 hold 96 bits, which nobody guesses at a few tries a second.
TOKEN_CHARS_MIN = 16
TOKEN_CHARS_MAX = 256
NAME_CHARS_MAX = 64
TOKENS_MAX = 1000
FILE_BYTES_MAX = 1024 * 1024
# How long a token that was taken out of the file may still be used.
RELOAD_S = 5.0
_NAME_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@")

_log = logging.getLogger("halfbridge.web")


class Role(Enum):
    """What a token allows. OPERATE allows all that READ allows, and changes."""

    READ = "read"
    OPERATE = "operate"

    def allows(self, wanted: Role) -> bool:
        """Tell whether a token of this role may do what needs the role `wanted`."""
        return self is wanted or self is Role.OPERATE


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request.

    Attributes:
        name: For the audit log: the token's name in the file, else `token-` and eight digits.
        role: What the token allows.
        digest: SHA-256 of the token; empty for everybody on a server without tokens.
    """

    name: str
    role: Role
    digest: bytes = b""


class Tokens:
    """The tokens of one reading of the file."""

    def __init__(self, principals: tuple[Principal, ...]) -> None:
        self._principals = principals

    def find(self, token: str) -> Principal | None:
        """Return whose token this is; the time taken does not depend on the token."""
        return self.find_digest(_digest(token))

    def find_digest(self, digest: bytes) -> Principal | None:
        """Return who has the token of this digest; None once the token is gone from the file."""
        found = None
        for each in self._principals:  # all of them, whichever fits
            if hmac.compare_digest(each.digest, digest):
                found = each
        return found


class TokenFile:
    """The token file, read again when the file has changed.

    Args:
        path: The file.
        monotonic: Tells the time, seconds.

    Raises:
        ConfigError: the file cannot be used; the operator corrects it.
    """

    def __init__(self, path: Path, *, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._monotonic = monotonic
        self._looked_at_s = monotonic()
        self._stamp = _stamp(path)
        self._tokens = read_tokens(path)

    def current(self) -> Tokens:
        """Return the tokens, at most `RELOAD_S` old.

        A file that can no longer be used changes nothing: the tokens of before stay, and the log
        says why.
        """
        now_s = self._monotonic()
        if now_s - self._looked_at_s >= RELOAD_S:
            self._looked_at_s = now_s
            self._reload()
        return self._tokens

    def _reload(self) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._tokens, self._stamp = read_tokens(self._path), stamp
        except ConfigError as error:
            _log.error("the token file cannot be read again, the old tokens stay: %s", error)
        else:
            _log.info("the token file has changed and was read again")


def read_tokens(path: Path) -> Tokens:
    """Return the tokens of a file.

    Raises:
        ConfigError: the file is missing, others may read it, or a line is wrong. The error names
            the line and never shows a token.
    """
    try:
        with path.open("rb") as file:
            _check_mode(path, os.fstat(file.fileno()))
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _wrong(path, f"{error.strerror}", "a file that this process can read") from error
    if len(text) > FILE_BYTES_MAX:
        raise _wrong(path, "too long", f"at most {FILE_BYTES_MAX} bytes")
    found = []
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            found.append(_principal(path, number, words))
    if not 1 <= len(found) <= TOKENS_MAX:
        raise _wrong(path, f"{len(found)} tokens", f"1 to {TOKENS_MAX} tokens")
    if len({each.digest for each in found}) < len(found):
        raise _wrong(path, "a token stands twice", "each token once")
    return Tokens(tuple(found))


def _principal(path: Path, number: int, words: list[str]) -> Principal:
    """Return what one line says."""
    allowed = f"'read TOKEN [NAME]' or 'operate TOKEN [NAME]' in line {number}"
    if len(words) not in (2, 3) or words[0] not in (Role.READ.value, Role.OPERATE.value):
        raise _wrong(path, f"line {number}", allowed)
    token = words[1]
    if not (TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX and token.isascii()):
        bounds = f"{TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} ASCII characters"
        raise _wrong(path, f"the token in line {number}", f"{bounds}, such as of openssl rand")
    digest = _digest(token)
    name = words[2] if words[2:] else f"token-{digest.hex()[:8]}"
    if len(name) > NAME_CHARS_MAX or not set(name) <= _NAME_SIGNS:
        raise _wrong(path, f"the name in line {number}", "letters, digits, '.', '_', '-', '@'")
    return Principal(name, Role(words[0]), digest)


def _check_mode(path: Path, seen: os.stat_result) -> None:
    """Refuse a file that others may read, as PostgreSQL does with private keys.

    A group may read a file of root's: a service's secret is often given to it in this way.
    """
    if not stat.S_ISREG(seen.st_mode):
        raise _wrong(path, "not a file", "a regular file")
    forbidden = 0o027 if seen.st_uid == 0 else 0o077
    if seen.st_mode & forbidden:
        mode = stat.S_IMODE(seen.st_mode)
        raise _wrong(path, f"mode {mode:04o}", "0600, or 0640 where root is the owner")


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        seen = path.stat()
    except OSError as error:
        raise _wrong(path, f"{error.strerror}", "a file that this process can read") from error
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


def _wrong(path: Path, value: str, allowed: str) -> ConfigError:
    return ConfigError(
        field="admin_tokens", value=value, origin=f"--admin-tokens {path}", allowed=allowed
    )
