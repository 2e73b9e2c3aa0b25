"""/openapi.json, made of the table of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge import __version__
from halfbridge.web.api.routes import PREFIX, TEXT_CHARS_MAX, Argument, Route
from halfbridge.web.tokens import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPES = {str: "string", int: "integer", bool: "boolean"}
_PROBLEM = {
    "description": "Not carried out; `detail` says why and what to do.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_STATUSES = ("400", "401", "403", "404", "409", "413", "429", "502", "503", "504")


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of `routes`."""
    paths: dict[str, dict[str, Any]] = {}
    for each in routes:
        paths.setdefault(PREFIX + each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "halfbridge", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": _problem()},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    words = route.path.replace("{", "").replace("}", "").strip("/").replace("-", "_").split("/")
    said: dict[str, Any] = {
        "operationId": "_".join((route.method.lower(), *words)),
        "summary": route.summary,
        "description": f"Needs the role {route.role.value}.",
        "parameters": [_in_path(name) for name in route.in_path]
        + [_parameter(each) for each in route.query],
        "responses": {
            "200": {
                "description": "Done.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            **dict.fromkeys(_STATUSES, _PROBLEM),
        },
    }
    if route.role is Role.OPERATE:
        said["x-role"] = Role.OPERATE.value
    if route.body:
        schema = {
            "type": "object",
            "properties": {each.name: _schema(each) for each in route.body},
            "required": [each.name for each in route.body if each.required],
            "additionalProperties": False,
        }
        said["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return said


def _in_path(name: str) -> dict[str, Any]:
    schema = {"type": "string", "maxLength": TEXT_CHARS_MAX}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _parameter(each: Argument) -> dict[str, Any]:
    return {"name": each.name, "in": "query", "required": each.required, "schema": _schema(each)}


def _schema(each: Argument) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES[each.kind], "description": each.doc}
    low, high = ("minLength", "maxLength") if each.kind is str else ("minimum", "maximum")
    if each.minimum is not None:
        schema[low] = each.minimum
    if each.maximum is not None or each.kind is str:
        schema[high] = TEXT_CHARS_MAX if each.maximum is None else each.maximum
    if each.default is not None:
        schema["default"] = each.default
    if each.words:
        schema["enum"] = list(each.words)
    return schema


def _problem() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "type": "object",
        "properties": {"title": text, "status": {"type": "integer"}, "detail": text},
        "required": ["title", "status", "detail"],
    }
