"""Requests that are not carried out: an HTTP status each, and a sentence for who made them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """A request that is not carried out.

    Attributes:
        status: HTTP's.
        detail: What is wrong, and what to do, in one sentence.
        headers: More headers of the answer.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})

    @property
    def title(self) -> str:
        """The status in words."""
        return TITLES.get(self.status, "error")
