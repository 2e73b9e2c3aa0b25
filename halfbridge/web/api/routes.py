"""What a route of the API is: its address, its role, its arguments, and what answers it.

A request is read by this description and nothing else, and /openapi.json is made of it: so what the
document says is what the server does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from halfbridge.web.gate import Principal, Role
from halfbridge.web.guards import Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from halfbridge.web.services import Services
    from halfbridge.web.work import CachedAnswer, CachePolicy

T = TypeVar("T")
PREFIX = "/api/v1"
LIMIT_DEFAULT = 50  # items: two screens of the page
LIMIT_MAX = 500  # items: more of them come by the next page
TEXT_CHARS_MAX = 3000  # longer than every id and topic name: longer text finds nothing
REASON_CHARS_MAX = 500  # a sentence or two, kept in each op
_DIGITS_MAX = 20  # as many as 2**64 has: a longer number is out of all bounds too
_WORDS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a route, in the query or in the body."""

    name: str
    kind: type  # str, int or bool
    doc: str
    required: bool = False
    default: Any = None
    minimum: int | None = None  # least number, or fewest characters
    maximum: int | None = None  # greatest number, or most characters
    words: tuple[str, ...] = ()  # the only texts allowed, or ()

    def read(self, raw: Any) -> Any:
        """Return the value of a query's text or of JSON's value; refuses wrong ones by 400."""
        value = self._converted(raw)
        size = len(value) if isinstance(value, str) else value
        most = TEXT_CHARS_MAX if self.kind is str and self.maximum is None else self.maximum
        if self.minimum is not None and size < self.minimum:
            raise self._wrong(f"at least {self.minimum}")
        if most is not None and size > most:
            raise self._wrong(f"at most {most}")
        if self.words and value not in self.words:
            raise self._wrong(f"one of {', '.join(self.words)}")
        return value

    def _converted(self, raw: Any) -> Any:
        if self.kind is int and isinstance(raw, str) and raw.isdecimal() and raw.isascii():
            return int(raw[:_DIGITS_MAX])
        if self.kind is bool and isinstance(raw, str) and raw in _WORDS:
            return _WORDS[raw]
        if type(raw) is self.kind:
            return raw
        names = {int: "a whole number", bool: "true or false", str: "text"}
        raise self._wrong(names[self.kind])

    def _wrong(self, allowed: str) -> Refusal:
        return Refusal(400, f"{self.name}: {allowed} is wanted")


@dataclass(frozen=True, slots=True)
class Call:
    """One request, read and allowed; `values` has the arguments of the path too."""

    services: Services
    principal: Principal
    values: Mapping[str, Any]

    async def read(self, reading: Callable[[Services, Mapping[str, Any]], T]) -> T:
        """Return what `reading` reads from Kafka, in a thread."""
        return await self.services.work.run(lambda: reading(self.services, self.values))

    async def kept(
        self, name: str, reading: Callable[[Services], T], keeps: CachePolicy
    ) -> CachedAnswer[T]:
        """Return an answer that all calls share."""
        kept = await self.services.answers.get(
            (name,), lambda: reading(self.services), fresh_s=keeps.fresh_s
        )
        if kept is None:
            raise AssertionError("an answer is waited for to its end")
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route."""

    path: str  # after `PREFIX`, with {arguments}
    summary: str
    answer: Callable[[Call], Awaitable[dict[str, Any]]]  # answers a call by a JSON-able object
    method: str = "GET"
    role: Role = Role.READ  # what a token needs
    query: tuple[Argument, ...] = ()  # arguments in the query of a GET
    body: tuple[Argument, ...] = field(default=())  # arguments in the JSON object of a POST

    @property
    def in_path(self) -> tuple[str, ...]:
        """Names of the arguments in the path."""
        return tuple(
            part[1:-1].partition(":")[0] for part in self.path.split("/") if part.startswith("{")
        )


PAGING = (
    Argument("limit", int, "Most items.", default=LIMIT_DEFAULT, minimum=1, maximum=LIMIT_MAX),
    Argument("offset", int, "Items to leave out.", default=0, minimum=0, maximum=10_000_000),
)
REASON = Argument(
    "reason",
    str,
    "Why; it is written to the audit log.",
    required=True,
    minimum=1,
    maximum=REASON_CHARS_MAX,
)


def read_arguments(wanted: tuple[Argument, ...], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the value of each wanted argument; refuses wrong, unknown and missing ones by 400."""
    known = {each.name for each in wanted}
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        names = ", ".join(sorted(known)) or "none"
        raise Refusal(400, f"an argument is not known here; known: {names}")
    values = {}
    for each in wanted:
        if each.required and each.name not in given:
            raise Refusal(400, f"{each.name} is missing: {each.doc}")
        values[each.name] = each.read(given[each.name]) if each.name in given else each.default
    return values


def read_body(content_type: str, body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; refuses another content type by 415, no object by 400."""
    # No form of a web page can have this content type: a stranger's page cannot send one.
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, "send the header Content-Type: application/json")
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "the body is no JSON") from error
    if not isinstance(said, dict):
        raise Refusal(400, "the body is no JSON object")
    return said


def page_of(items: list[Any], values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the items that `limit` and `offset` choose, and fields about the others."""
    first, most = values["offset"], values["limit"]
    chosen = items[first : first + most]
    following = first + len(chosen)
    next_offset = following if following < len(items) else None
    return chosen, {"total": len(items), "next_offset": next_offset}
