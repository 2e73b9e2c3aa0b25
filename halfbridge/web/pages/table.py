"""All pages and forms, as routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as HttpRoute

from halfbridge.web.guards import Refusal
from halfbridge.web.pages import dead_letters, findings, groups, overview, transactions
from halfbridge.web.pages.page import (
    SIGN_IN,
    TEMPLATES,
    Form,
    Page,
    Visit,
    fields_of,
    plain_page,
    rendered,
    safe_next,
    to_sign_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from halfbridge.web.services import Services

PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *transactions.PAGES,
    *dead_letters.PAGES,
    *groups.PAGES,
    *findings.PAGES,
)
FORMS: tuple[Form, ...] = (*transactions.FORMS, *dead_letters.FORMS)
NAVIGATION = tuple(each for each in PAGES if each.entry)
TEMPLATES.globals["navigation"] = NAVIGATION


def page_routes(services: Services) -> list[HttpRoute]:
    """Return the routes of all pages, forms and of signing in and out."""
    return [
        *(HttpRoute(each.path, _page(services, each), methods=["GET"]) for each in PAGES),
        *(HttpRoute(each.path, _form(services, each), methods=["POST"]) for each in FORMS),
        HttpRoute(SIGN_IN, _sign_in_page(services), methods=["GET"]),
        HttpRoute(SIGN_IN, _sign_in(services), methods=["POST"]),
        HttpRoute("/sign-out", _sign_out(services), methods=["POST"]),
    ]


def _page(services: Services, page: Page) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        found = services.gate.of_page(request)
        if found is None:
            return to_sign_in(request)
        visit = Visit(services, request, *found)
        context = await page.look(visit)
        if "goto" in context:
            return RedirectResponse(context["goto"], 303)
        told = "" if visit.session is None else services.gate.sessions.told(visit.session)
        return rendered(page.template, visit, {"title": page.title, "told": told, **context})

    return endpoint


def _form(services: Services, form: Form) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        fields = await fields_of(request)
        session = services.gate.check_change(request, fields.pop("csrf", ""))
        done = await form.act(services, session.principal, fields)
        services.answers.forget()
        services.gate.sessions.tell(session, done.said)
        return RedirectResponse(done.address, 303)

    return endpoint


def _sign_in_page(services: Services) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        wanted = safe_next(request.query_params.get("next", "/"))
        if not services.gate.has_tokens:
            return RedirectResponse(wanted, 303)
        return plain_page("sign-in.html", next=wanted, wrong="")

    return endpoint


def _sign_in(services: Services) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        fields = await fields_of(request)
        wanted = safe_next(fields.get("next", "/"))
        response = RedirectResponse(wanted, 303)
        try:
            services.gate.sign_in(fields.get("token", ""), request, response)
        except Refusal as refusal:
            answer = plain_page("sign-in.html", refusal.status, next=wanted, wrong=refusal.detail)
            answer.headers.update(refusal.headers)
            return answer
        return response

    return endpoint


def _sign_out(services: Services) -> Callable[..., Any]:
    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        response = RedirectResponse(SIGN_IN, 303)
        services.gate.sign_out(request, response)
        return response

    return endpoint
