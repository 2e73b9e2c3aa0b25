"""What applies to every request: sizes, times, refusals, the answer's headers."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TITLES = {
    400: "the request is wrong",
    401: "a token is needed",
    403: "not allowed",
    404: "not found",
    405: "not a method of this address",
    408: "the request took too long",
    409: "refused in this state",
    413: "the request is too large",
    415: "not a content type of this address",
    429: "too many requests",
    500: "unexpected error",
    502: "Kafka says no",
    503: "too busy",
    504: "no answer in time",
}


class Refusal(Exception):  # noqa: N818 (an answer to a client; nothing is wrong here)
    """A request that is not carried out; `detail` says what is wrong, and what to do."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})

    @property
    def title(self) -> str:
        """The status in words."""
        return TITLES.get(self.status, "error")


BODY_BYTES_MAX = 64 * 1024  # a bulk resume of 100 ids of 36 characters has 6 KB
BODY_S_MAX = 10.0  # a slow sender must not hold a place of the server
# No script, style or picture but this server's own files, and nothing in a page's own text: what
# a stranger has written into a record stays text even if it were not escaped.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = (
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    # Not no-referrer: with it browsers hide the Origin of a form from its own server.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
_STATIC = "/static/"
_NO_STORE = (b"cache-control", b"no-store")
# The address of such a file changes with what is in it.
_FOR_GOOD = (b"cache-control", b"public, max-age=31536000, immutable")


class AnswerHeaders:
    """Adds `HEADERS` to each answer; forbids caching unless the answer or its path allows it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                headers += [(name.encode(), value.encode()) for name, value in HEADERS]
                if all(name.lower() != b"cache-control" for name, _ in headers):
                    is_file = scope["path"].startswith(_STATIC)
                    is_there = message["status"] < HTTPStatus.BAD_REQUEST
                    headers.append(_FOR_GOOD if is_file and is_there else _NO_STORE)
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, sent)


async def body_of(request: Request) -> bytes:
    """Return a request's body; refuses by 413 above `BODY_BYTES_MAX`, by 408 after `BODY_S_MAX`."""
    too_large = Refusal(413, f"a request may have {BODY_BYTES_MAX} bytes")
    said = request.headers.get("content-length", "0")
    if not said.isdecimal() or int(said) > BODY_BYTES_MAX:
        raise too_large

    async def read() -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                raise too_large
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), BODY_S_MAX)
    except asyncio.TimeoutError as error:
        raise Refusal(408, f"the body did not come within {BODY_S_MAX:.0f} s") from error
