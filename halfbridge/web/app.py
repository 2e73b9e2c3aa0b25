"""The application: all routes, what guards them, and what an error looks like."""

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

from halfbridge.kafka.errors import BridgeError
from halfbridge.logs import one_line
from halfbridge.web.api.openapi import openapi
from halfbridge.web.api.routes import (
    PREFIX,
    TEXT_CHARS_MAX,
    Call,
    Route,
    read_arguments,
    read_body,
)
from halfbridge.web.api.table import ROUTES
from halfbridge.web.guards import AnswerHeaders, body_of
from halfbridge.web.pages.page import error_page
from halfbridge.web.pages.table import page_routes
from halfbridge.web.refusals import Refusal
from halfbridge.web.tokens import Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

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


def _openapi_endpoint(services: Services) -> Callable[..., Any]:
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


def _handler(refusal_of: Callable[[Any], Refusal]) -> Callable[..., Any]:
    """Return what answers a request that ended with an error."""

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
