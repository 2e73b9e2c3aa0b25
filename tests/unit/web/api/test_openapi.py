"""/openapi.json says what the server does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.routing import Route as HttpRoute

from halfbridge.web.api.routes import PREFIX
from halfbridge.web.app import ROUTES, openapi
from tests.kit.web import READ_TOKEN, stage


def _operations(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (path, method.upper()) for path, methods in document["paths"].items() for method in methods
    }


def test_the_document_has_the_routes_of_the_server_and_no_others(tmp_path: Path) -> None:
    """Each route that the application serves under /api/v1 is described, with its method."""
    web = stage(tmp_path)
    served = {
        (each.path, method)
        for each in web.app._app.routes  # type: ignore[attr-defined]
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
