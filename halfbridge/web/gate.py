"""Who makes a request, and whether it may be made: tokens, sessions, rates, and forms' origin.

| Face | Signs in by | A change needs |
|---|---|---|
| /api/v1 | `Authorization: Bearer TOKEN`; never a cookie | the role operate |
| web page | a token in a form, then a cookie | the role operate, and what follows |

The page makes changes with `--allow-changes` only. A form repeats the session's CSRF token, and the
browser must name the server itself as the form's Origin.

Without a token file (loopback only) everybody on this machine may read, and nobody may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from halfbridge.web.config import is_loopback
from halfbridge.web.rates import (
    FAILURES_AT_ONCE,
    FAILURES_PER_S,
    REQUESTS_AT_ONCE,
    REQUESTS_PER_S,
    RateLimit,
)
from halfbridge.web.refusals import Refusal
from halfbridge.web.sessions import Session, Sessions
from halfbridge.web.tokens import TOKEN_CHARS_MAX, Principal, Role, TokenFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from halfbridge.web.config import WebConfig

COOKIE = "halfbridge_session"
ANYBODY = Principal("anybody", Role.READ)
_BEARER = "bearer "


class Gate:
    """Decides about each request.

    Args:
        config: Names the token file.
        monotonic: Tells the time, seconds.

    Attributes:
        sessions: The browsers that have signed in.

    Raises:
        ConfigError: the token file cannot be used; the operator corrects it.
    """

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
        """Return who makes a request to the API.

        Raises:
            Refusal: 401 without a valid token, 403 where the token's role is too small, 429.
        """
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
        """Return who looks at a page; None: the browser must sign in first.

        Raises:
            Refusal: 429.
        """
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
        """Sign a browser in: the response sets its cookie.

        Raises:
            Refusal: 401, 403 for a form of another site, 429.
        """
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
        """End a browser's session.

        Raises:
            Refusal: 403 for a form of another site.
        """
        check_origin(request)
        self.sessions.close(request.cookies.get(self.cookie, ""))
        response.delete_cookie(
            self.cookie, path="/", secure=self._is_tls, httponly=True, samesite="strict"
        )

    def may_change(self, principal: Principal, session: Session | None) -> bool:
        """Tell whether the page shows forms that change anything."""
        return self._allows_changes and session is not None and principal.role is Role.OPERATE

    def check_change(self, request: Request, said_csrf: str) -> Session:
        """Return the session of who makes a change on the page.

        Raises:
            Refusal: 401 without a session, 403 for anything that a change lacks, 429.
        """
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
        """Refuse a Host that is not of this machine, where nobody signs in.

        Otherwise any web site that has its own name lead to 127.0.0.1 could have its visitors'
        browsers read the pages (DNS rebinding).

        Raises:
            Refusal: 403.
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
    """Refuse a form that stands on another site's page.

    Browsers name the page's origin with every POST.

    Raises:
        Refusal: 403.
    """
    try:
        origin = urlsplit(request.headers.get("origin", "")).netloc
    except ValueError:  # such as http://[, which no browser sends
        origin = ""
    if not origin or origin != request.headers.get("host", ""):
        raise Refusal(403, "the form was not sent by a page of this server")


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _host_name(host: str) -> str:
    """Return the Host header without its port."""
    return host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _unknown(detail: str) -> Refusal:
    return Refusal(401, detail, {"WWW-Authenticate": 'Bearer realm="halfbridge"'})


def _too_small(principal: Principal) -> Refusal:
    return Refusal(403, f"the role of {principal.name} is read; this needs the role operate")


def _too_many(wait_s: int, why: str) -> Refusal:
    return Refusal(429, f"{why}: wait {wait_s} s", {"Retry-After": str(wait_s)})
