"""Arguments of the API are what their description allows, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route as HttpRoute

from halfbridge.web.api.routes import (
    LIMIT_MAX,
    PAGING,
    PREFIX,
    REASON,
    Argument,
    page_of,
    read_arguments,
    read_body,
)
from halfbridge.web.app import ROUTES, openapi
from halfbridge.web.guards import Refusal
from tests.kit.web import READ_TOKEN, stage

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


# --- /openapi.json says what the server does -----------------------------------------------


def _operations(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (path, method.upper()) for path, methods in document["paths"].items() for method in methods
    }


def test_the_document_has_the_routes_of_the_server_and_no_others(tmp_path: Path) -> None:
    """Each route that the application serves under /api/v1 is described, with its method."""
    web = stage(tmp_path)
    served = {
        (each.path, method)
        for each in web.app._app.routes
        if isinstance(each, HttpRoute) and each.path.startswith(PREFIX)
        for method in (each.methods or set()) - {"HEAD"}
    }
    assert served == _operations(openapi(ROUTES))
    answer = web.client(READ_TOKEN).get("/openapi.json")
    assert _operations(answer.json()) == served


def test_names_of_operations_are_unique_and_arguments_are_described() -> None:
    """Programs that make clients of the document need one name an operation."""
    document = openapi(ROUTES)
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names) == len(ROUTES)
    for path, methods in document["paths"].items():
        for each in methods.values():
            said = {one["name"] for one in each["parameters"] if one["in"] == "path"}
            assert said == {part[1:-1] for part in path.split("/") if part.startswith("{")}
