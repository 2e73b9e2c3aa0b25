"""Arguments of the API are what their description allows, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from halfbridge.web.api.routes import (
    LIMIT_MAX,
    PAGING,
    REASON,
    Argument,
    page_of,
    read_arguments,
    read_body,
)
from halfbridge.web.guards import Refusal

FORCE = Argument("force", bool, "Whatever.", default=False)
STATE = Argument("state", str, "A state.", words=("A", "B"))


def test_values_have_their_types_and_defaults() -> None:
    """A query has text, a body has JSON's own types."""
    wanted = (*PAGING, FORCE)
    assert read_arguments(wanted, {}) == {"limit": 50, "offset": 0, "force": False}
    assert read_arguments(wanted, {"limit": "7", "force": "true"})["limit"] == 7
    assert read_arguments(wanted, {"limit": 7, "force": True})["force"] is True


@pytest.mark.parametrize(
    ("argument", "raw"),
    [
        *[
            (PAGING[0], each)
            for each in ("0", str(LIMIT_MAX + 1), "x", "1.5", "-1", "", True, None)
        ],
        *[(PAGING[0], each) for each in ("9" * 5000, "\u0663", [1])],
        *[(FORCE, each) for each in ("yes", 1, None)],
        *[(STATE, each) for each in ("C", "", 1)],
        *[(REASON, each) for each in ("", "x" * 501, 5)],
        (Argument("id", str, "An id."), "x" * 3001),
    ],
)
def test_what_is_not_allowed_is_refused(argument: Argument, raw: Any) -> None:
    """The refusal names the argument."""
    with pytest.raises(Refusal, match=argument.name) as caught:
        argument.read(raw)
    assert caught.value.status == 400


def test_unknown_and_missing_arguments_are_refused() -> None:
    """A slip in an argument's name is not an argument that was left out."""
    with pytest.raises(Refusal, match="known: limit, offset"):
        read_arguments(PAGING, {"limits": "5"})
    with pytest.raises(Refusal, match="reason is missing"):
        read_arguments((REASON,), {})


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("text/plain", b"{}", 415),
        ("", b"{}", 415),
        ("application/json", b"", 400),
        ("application/json", b"[]", 400),
        ("application/json", b"\xff", 400),
        ("application/json", b"[" * 60_000, 400),
    ],
)
def test_a_body_is_a_json_object(kind: str, body: bytes, status: int) -> None:
    """A form of another site's page cannot have the content type."""
    with pytest.raises(Refusal) as caught:
        read_body(kind, body)
    assert caught.value.status == status
    assert read_body("application/json; charset=utf-8", b'{"a": 1}') == {"a": 1}


def test_pages_cover_the_items_once() -> None:
    """The last page names no next one."""
    items, seen, offset = list(range(7)), [], 0
    while True:
        chosen, paging = page_of(items, {"limit": 3, "offset": offset})
        seen += chosen
        if paging["next_offset"] is None:
            break
        offset = paging["next_offset"]
    assert seen == items
    assert paging["total"] == 7
    assert page_of(items, {"limit": 3, "offset": 99}) == ([], {"total": 7, "next_offset": None})
