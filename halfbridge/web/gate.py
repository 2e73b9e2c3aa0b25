"""Who makes a request, and whether it may be made: tokens, sessions, rates, and forms' origin.

| Face | Signs in by | A change needs |
|---|---|---|
| /api/v1 | `Authorization: Bearer TOKEN`; never a cookie | the role operate |
| web page | a token in a form, then a cookie | the role operate, and what follows |

The page makes changes with `--allow-changes` only. A form repeats the session's CSRF token, and the
browser must name the server itself as the form's Origin.

Without a token file (loopback only) everybody on this machine may read, and nobody may change.
Sessions are in memory only: after a restart of the process a browser signs in again.

The token file has one line a token: the role (`read` or `operate`), the token, and a name for the
audit log. Empty lines and lines that begin with `#` are left out. Example:

    read     u6Dk0cQ1Xw3m9TzB5rYp2nLh   grafana
    operate  Zp8sV4eN7aKj1RfM6tWc3yGq   alice
"""

from __future__ import annotations

import hmac
import logging
import math
import os
import secrets
import stat
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from halfbridge.kafka.errors import ConfigError
from halfbridge.web.config import is_loopback
from halfbridge.web.guards import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response

    from halfbridge.web.config import WebConfig

COOKIE = "halfbridge_session"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request."""

    name: str  # for the audit log: the token's name in the file, else `token-` and eight digits
    role: Role  # what the token allows
    digest: bytes = b""  # SHA-256 of the token; empty for everybody on a server without tokens


class Role(Enum):
    """What a token allows. OPERATE allows all that READ allows, and changes."""

    READ = "read"
    OPERATE = "operate"

    def allows(self, wanted: Role) -> bool:
        """Tell whether a token of this role may do what needs the role `wanted`."""
        return self is wanted or self is Role.OPERATE


ANYBODY = Principal("anybody", Role.READ)
_BEARER = "bearer "


class Gate:
    """Decides about each request. ConfigError: the operator corrects the token file."""

    def __init__(self, config: WebConfig, *, monotonic: Callable[[], float]) -> None:
        path = config.admin_tokens
        self._file = None if path is None else TokenFile(path, monotonic=monotonic)
        self._is_tls = config.admin_cert is not None
        self._allows_changes = config.allow_changes
        self.sessions = Sessions(monotonic=monotonic)
        self._requests = RateLimit(REQUESTS_PER_S, REQUESTS_AT_ONCE, monotonic=monotonic)
        self._failures = RateLimit(FAILURES_PER_S, FAILURES_AT_ONCE, monotonic=monotonic)

    @property
    def has_tokens(self) -> bool:
        """Whether anybody has to sign in."""
        return self._file is not None

    @property
    def cookie(self) -> str:
        """Name of the session's cookie; over TLS one that only this host can have set."""
        return f"__Host-{COOKIE}" if self._is_tls else COOKIE

    def of_api(self, request: Request, wanted: Role) -> Principal:
        """Return who calls the API; refuses by 401, 403 (the role is too small) and 429."""
        said = request.headers.get("authorization", "")
        if self._file is None:
            principal = ANYBODY
        elif not said.lower().startswith(_BEARER):
            raise _unknown("send the header Authorization: Bearer TOKEN")
        else:
            principal = self._by_token(said[len(_BEARER) :].strip(), request)
        self._count(principal, request)
        if not principal.role.allows(wanted):
            raise _too_small(principal)
        return principal

    def of_page(self, request: Request) -> tuple[Principal, Session | None] | None:
        """Return who asks for a page; None: the browser must sign in first. Refuses by 429."""
        if self._file is None:
            self._count(ANYBODY, request)
            return ANYBODY, None
        session = self.sessions.find(request.cookies.get(self.cookie, ""))
        if session is None:
            return None
        # A token that was taken out of the file ends its sessions; its role may have changed.
        principal = self._file.current().find_digest(session.principal.digest)
        if principal is None:
            self.sessions.close(session.key)
            return None
        self._count(principal, request)
        return principal, session

    def sign_in(self, token: str, request: Request, response: Response) -> None:
        """Sign a browser in: the response sets its cookie. Refuses by 401, 403 and 429."""
        check_origin(request)
        if self._file is None:
            return
        session = self.sessions.open(self._by_token(token.strip(), request))
        response.set_cookie(
            self.cookie,
            session.key,
            path="/",
            secure=self._is_tls,
            httponly=True,
            samesite="strict",
        )

    def sign_out(self, request: Request, response: Response) -> None:
        """End a browser's session; refuses the form of another site by 403."""
        check_origin(request)
        self.sessions.close(request.cookies.get(self.cookie, ""))
        response.delete_cookie(
            self.cookie, path="/", secure=self._is_tls, httponly=True, samesite="strict"
        )

    def may_change(self, principal: Principal, session: Session | None) -> bool:
        """Tell whether the page shows forms that change anything."""
        return self._allows_changes and session is not None and principal.role is Role.OPERATE

    def check_change(self, request: Request, said_csrf: str) -> Session:
        """Return the session of who makes a change on the page; refuses by 401, 403 and 429."""
        found = self.of_page(request)
        if found is None:
            raise Refusal(401, "sign in first")
        principal, session = found
        check_origin(request)
        if session is None or not session.has_csrf(said_csrf):
            raise Refusal(403, "the form is too old or not of this page: load the page again")
        if not self._allows_changes:
            raise Refusal(403, "the page is read-only: it was started without --allow-changes")
        if principal.role is not Role.OPERATE:
            raise _too_small(principal)
        return session

    def check_host(self, request: Request) -> None:
        """Refuse a Host that is not of this machine by 403, where nobody signs in.

        Otherwise any web site that has its own name lead to 127.0.0.1 could have its visitors'
        browsers read the pages (DNS rebinding).
        """
        if self._file is None and not is_loopback(_host_name(request.headers.get("host", ""))):
            raise Refusal(403, "use the address http://127.0.0.1 or http://localhost")

    def _by_token(self, token: str, request: Request) -> Principal:
        if self._file is None:
            raise AssertionError("asked with a token file only")
        address = _address(request)
        wait_s = self._failures.wait_s(address)
        if wait_s:
            raise _too_many(wait_s, "too many wrong tokens from this address")
        principal = None
        if len(token) <= TOKEN_CHARS_MAX:
            principal = self._file.current().find(token)
        if principal is None:
            self._failures.take(address)
            raise _unknown("this token is not known")
        return principal

    def _count(self, principal: Principal, request: Request) -> None:
        key = principal.digest.hex() or _address(request)
        wait_s = self._requests.take(key)
        if wait_s:
            raise _too_many(wait_s, f"more than {REQUESTS_PER_S:.0f} requests a second")


def check_origin(request: Request) -> None:
    """Refuse a form of another site's page by 403; browsers name the page's origin in a POST."""
    try:
        origin = urlsplit(request.headers.get("origin", "")).netloc
    except ValueError:  # such as http://[, which no browser sends
        origin = ""
    if not origin or origin != request.headers.get("host", ""):
        raise Refusal(403, "the form was not sent by a page of this server")


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _host_name(host: str) -> str:
    return host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _unknown(detail: str) -> Refusal:
    return Refusal(401, detail, {"WWW-Authenticate": 'Bearer realm="halfbridge"'})


def _too_small(principal: Principal) -> Refusal:
    return Refusal(403, f"the role of {principal.name} is read; this needs the role operate")


def _too_many(wait_s: int, why: str) -> Refusal:
    return Refusal(429, f"{why}: wait {wait_s} s", {"Retry-After": str(wait_s)})


SESSIONS_MAX = 1000  # the one that was used longest ago makes room
# Per token. Otherwise a token with the role read could end all sessions of operators.
SESSIONS_OF_ONE_MAX = 50
IDLE_S_MAX = 3600.0  # an hour without a request: a person has left the page
AGE_S_MAX = 12 * 3600.0  # half a day: one shift
_ID_BYTES = 32  # 256 bits, twice what OWASP asks for


@dataclass(frozen=True, slots=True)
class Session:
    """One browser."""

    key: str  # the cookie's value
    principal: Principal
    csrf: str  # what each form of this browser must repeat
    born_s: float  # when the browser signed in, monotonic seconds

    def has_csrf(self, said: str) -> bool:
        """Tell whether a form repeats this session's CSRF token."""
        return hmac.compare_digest(self.csrf.encode(), said.encode("utf-8", "replace"))


class Sessions:
    """All sessions of this process.

    The session that was used longest ago makes room for a new one: of the same token where the
    token has `SESSIONS_OF_ONE_MAX`, else of all.
    """

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._used: OrderedDict[str, tuple[Session, float]] = OrderedDict()
        self._words: dict[str, str] = {}

    def open(self, principal: Principal) -> Session:
        """Return a new session of `principal`."""
        digest = principal.digest
        own = [key for key, (each, _) in self._used.items() if each.principal.digest == digest]
        if len(own) >= SESSIONS_OF_ONE_MAX:
            self.close(own[0])
        while len(self._used) >= SESSIONS_MAX:
            self.close(next(iter(self._used)))
        key, csrf = secrets.token_urlsafe(_ID_BYTES), secrets.token_urlsafe(_ID_BYTES)
        session = Session(key, principal, csrf, self._monotonic())
        self._used[key] = (session, session.born_s)
        return session

    def find(self, key: str) -> Session | None:
        """Return the session with this id; None where there is none, or its time is over."""
        session, used_s = self._used.get(key, (None, 0.0))
        if session is None:
            return None
        now_s = self._monotonic()
        if now_s - used_s > IDLE_S_MAX or now_s - session.born_s > AGE_S_MAX:
            self.close(key)
            return None
        self._used[key] = (session, now_s)
        self._used.move_to_end(key)
        return session

    def close(self, key: str) -> None:
        """Forget a session."""
        self._used.pop(key, None)
        self._words.pop(key, None)

    def set_notice(self, session: Session, words: str) -> None:
        """Have the next page of a session show `words`."""
        if session.key in self._used:
            self._words[session.key] = words

    def pop_notice(self, session: Session) -> str:
        """Return the words that the next page of a session shows, once."""
        return self._words.pop(session.key, "")


# 16 characters of base64 hold 96 bits, which nobody guesses at a few tries a second.
TOKEN_CHARS_MIN = 16
TOKEN_CHARS_MAX = 256  # 1,536 bits: a longer one is a mistake
NAME_CHARS_MAX = 64  # the audit log and the page show it in a column
TOKENS_MAX = 1000  # as SESSIONS_MAX
FILE_BYTES_MAX = 1024 * 1024  # TOKENS_MAX entries of a kilobyte
# How long a token that was taken out of the file may still be used.
RELOAD_S = 5.0
_NAME_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@")
_log = logging.getLogger("halfbridge.web")


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
    """The token file, read again when the file has changed."""

    def __init__(self, path: Path, *, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._monotonic = monotonic
        self._checked_at_s = monotonic()
        self._stamp = _stamp(path)
        self._tokens = read_tokens(path)

    def current(self) -> Tokens:
        """Return the tokens, at most `RELOAD_S` old.

        If the file can no longer be used, the tokens of before stay, and the log says why.
        """
        now_s = self._monotonic()
        if now_s - self._checked_at_s >= RELOAD_S:
            self._checked_at_s = now_s
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

    Raises ConfigError: it names the line, and never a token; the operator corrects the file.
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
        raise _wrong(path, "a token is given twice", "each token once")
    return Tokens(tuple(found))


def _principal(path: Path, number: int, words: list[str]) -> Principal:
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


# A page and what it loads are four requests; a script that polls makes one a second.
REQUESTS_PER_S = 20.0
REQUESTS_AT_ONCE = 60  # three seconds' worth: a page that opens in several tabs
# Wrong tokens of one address. Of 2^96 tokens nobody finds one at this rate.
FAILURES_PER_S = 0.2
FAILURES_AT_ONCE = 10  # typing errors of a person
KEYS_MAX = 10_000  # addresses and tokens that are counted: about 2 MB


class RateLimit:
    """One bucket of at most `at_once` requests for each key, which gains `per_s` a second."""

    def __init__(self, per_s: float, at_once: int, *, monotonic: Callable[[], float]) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str) -> int:
        """Return whole seconds until `key` may make a request; 0: now."""
        missing = 1.0 - self._level(key)
        return max(0, math.ceil(missing / self._per_s))

    def take(self, key: str) -> int:
        """Count one request of `key`; return 0, or in how many seconds it may be made instead."""
        wait_s = self.wait_s(key)
        if wait_s == 0:
            self._put(key, self._level(key) - 1.0)
        return wait_s

    def _level(self, key: str) -> float:
        level, at_s = self._buckets.get(key, (float(self._at_once), self._monotonic()))
        return min(float(self._at_once), level + (self._monotonic() - at_s) * self._per_s)

    def _put(self, key: str, level: float) -> None:
        self._buckets[key] = (level, self._monotonic())
        self._buckets.move_to_end(key)
        while len(self._buckets) > KEYS_MAX:
            # The key that has waited longest: its bucket is the fullest, nearly always.
            self._buckets.popitem(last=False)
