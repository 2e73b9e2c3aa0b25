"""The application: all routes, what guards them, and the form of an error.

/openapi.json is made of the table of routes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.routing import Route as HttpRoute
from starlette.staticfiles import StaticFiles

from halfbridge import __version__
from halfbridge.kafka.errors import BridgeError
from halfbridge.logs import one_line
from halfbridge.web.api import dead_letters, decisions, readings, transactions
from halfbridge.web.api.routes import (
    PREFIX,
    TEXT_CHARS_MAX,
    Argument,
    Call,
    Route,
    read_arguments,
    read_body,
)
from halfbridge.web.gate import Role
from halfbridge.web.guards import AnswerHeaders, Refusal, body_of
from halfbridge.web.pages.page import error_page
from halfbridge.web.pages.table import page_routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from halfbridge.web.services import Services

OPENAPI = "/openapi.json"
STATIC = Path(__file__).parent / "static"
_MACHINES = (PREFIX + "/", OPENAPI)
_log = logging.getLogger("halfbridge.web")


def make_app(services: Services) -> ASGIApp:
    """Return the application of one server."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(services.watch.run())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            services.work.close()

    routes: list[BaseRoute] = [
        HttpRoute("/livez", _livez),
        HttpRoute(OPENAPI, _openapi_endpoint(services)),
        *(_api_route(services, each) for each in ROUTES),
        *page_routes(services),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: dict[Any, Callable[..., Any]] = {
        Refusal: _handler(lambda error: error),
        BridgeError: _handler(_of_kafka),
        HTTPException: _handler(_of_http),
        Exception: _handler(_unexpected),
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    return AnswerHeaders(app)


def json_response(
    body: dict[str, Any], status: int = 200, media: str = "application/json"
) -> Response:
    r"""Return `body` as JSON in ASCII: what is no UTF-8 in a record stays a \ud800 there."""
    return Response(json.dumps(body) + "\n", status, media_type=media)


async def _livez(_request: Request) -> Response:
    return PlainTextResponse("live\n")


def _openapi_endpoint(services: Services) -> Callable[..., object]:
    document = openapi(ROUTES)

    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        services.gate.of_api(request, Role.READ)
        return json_response(document)

    return endpoint


def _api_route(services: Services, route: Route) -> HttpRoute:
    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        principal = services.gate.of_api(request, route.role)
        values = read_arguments(route.query, dict(request.query_params))
        if route.method == "POST":
            body = await body_of(request)
            said = read_body(request.headers.get("content-type", ""), body)
            values |= read_arguments(route.body, said)
        for name in route.in_path:
            values[name] = request.path_params[name]
            if len(values[name]) > TEXT_CHARS_MAX:
                raise Refusal(404, "there is nothing with so long a name")
        return json_response(await route.answer(Call(services, principal, values)))

    return HttpRoute(PREFIX + route.path, endpoint, methods=[route.method])


def _handler(refusal_of: Callable[[Any], Refusal]) -> Callable[..., object]:

    async def handle(request: Request, error: Exception) -> Response:
        return _refused(request, refusal_of(error))

    return handle


def _refused(request: Request, refusal: Refusal) -> Response:
    if request.url.path.startswith(_MACHINES):
        body = {"title": refusal.title, "status": refusal.status, "detail": refusal.detail}
        response = json_response(body, refusal.status, "application/problem+json")
    else:
        response = error_page(request, refusal)
    response.headers.update(refusal.headers)
    return response


def _of_kafka(error: Exception) -> Refusal:
    text = one_line(" ".join(str(error).split()))
    _log.warning("a request failed: %s", text)
    return Refusal(502, text)


def _of_http(error: HTTPException) -> Refusal:
    detail = "there is no such page" if error.status_code == HTTPStatus.NOT_FOUND else error.detail
    return Refusal(error.status_code, detail, error.headers)


def _unexpected(_error: Exception) -> Refusal:
    return Refusal(500, "the log of this server has the traceback")


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


ROUTES: tuple[Route, ...] = (
    *readings.ROUTES,
    *transactions.ROUTES,
    *decisions.ROUTES,
    *dead_letters.ROUTES,
)
