"""All pages and forms, as routes, with the pages that only read one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as HttpRoute

from halfbridge.kafka.errors import BridgeError
from halfbridge.web.api import readings
from halfbridge.web.api.routes import PAGING, page_of
from halfbridge.web.guards import Refusal
from halfbridge.web.pages import dead_letters, transactions
from halfbridge.web.pages.page import (
    SIGN_IN,
    TEMPLATES,
    Form,
    Page,
    Visit,
    fields_of,
    plain_page,
    query_of,
    rendered,
    safe_next,
    to_sign_in,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from halfbridge.checker.admin.doctor.facts import Finding
    from halfbridge.web.services import Services
    from halfbridge.web.work import CachePolicy

# The overview of a browser that stays open asks doctor so often: each run asks brokers for seconds.
_AGAIN_S = 60.0
# Most findings shown on the overview, the worst first; the doctor page shows all.
FINDINGS_MAX = 5


async def _overview(visit: Visit) -> dict[str, Any]:
    watch = visit.services.watch
    found = watch.overview()
    lags: dict[int, dict[str, float]] = {}
    if found is not None:
        for (partition, letter), records in sorted(found.now.lags.items()):
            lags.setdefault(partition, {})[letter] = records
    return {
        "findings_max": FINDINGS_MAX,
        "findings": await _findings(visit) if watch.has_daemons else None,
        "overview": found,
        "health": watch.health,
        "has_daemons": watch.has_daemons,
        "lags": lags,
    }


async def _findings(visit: Visit) -> tuple[Finding, ...] | None:
    """Return what doctor found last; None: nothing yet. The page does not wait for it."""
    services = visit.services
    try:
        kept = await services.answers.get(
            ("doctor",),
            lambda: readings.find_faults(services),
            fresh_s=_AGAIN_S,
            old_s=readings.FINDINGS_KEPT.old_s,
            wait_s=0.0,
        )
    except (BridgeError, Refusal):  # the page of doctor shows it
        return None
    return None if kept is None else kept.value


async def _groups(visit: Visit) -> dict[str, Any]:
    services, values = visit.services, query_of(visit.request, (readings.SINCE, *PAGING))
    key = ("groups", values["since_s"])
    kept = await visit.kept(
        key, lambda: readings.read_groups_of(services, values), readings.GROUPS_KEPT
    )
    context: dict[str, Any] = {"kept": kept, "values": values}
    if kept is not None:
        shown, paging = page_of(list(kept.value.groups), values)
        context |= {"shown": shown, "paging": paging, "query": {"since_s": values["since_s"]}}
    return context


async def _group(visit: Visit) -> dict[str, Any]:
    services, values = visit.services, query_of(visit.request, (readings.SINCE,))
    name = visit.request.path_params["name"]
    key = ("group", name, values["since_s"])
    kept = await visit.kept(
        key, lambda: readings.read_groups_of(services, values, only=name), readings.GROUPS_KEPT
    )
    if kept is not None and not kept.value.groups:
        raise Refusal(404, "no such producer group was seen")
    return {"kept": kept, "name": name, "title": "Producer group", "values": values}


def _only(
    name: str, read: Callable[[Services], Any], keeps: CachePolicy
) -> Callable[[Visit], Awaitable[dict[str, Any]]]:
    """Return the context of a page that shows one answer."""

    async def show(visit: Visit) -> dict[str, Any]:
        return {"kept": await visit.kept((name,), lambda: read(visit.services), keeps)}

    return show


_topics = _only("topics", readings.find_topics, readings.TOPICS_KEPT)
_doctor = _only("doctor", readings.find_faults, readings.FINDINGS_KEPT)


async def _audit_log(visit: Visit) -> dict[str, Any]:
    services, values = visit.services, query_of(visit.request, readings.ACTION_ARGUMENTS)
    key = ("audit-log", *values.values())
    kept = await visit.kept(
        key, lambda: readings.find_actions(services, values), readings.ACTIONS_KEPT
    )
    return {"kept": kept, "values": values}


PAGES: tuple[Page, ...] = (
    Page(path="/", title="Overview", template="overview.html", show=_overview, entry="Overview"),
    *transactions.PAGES,
    *dead_letters.PAGES,
    Page(path="/groups", title="Groups", template="groups.html", show=_groups, entry="Groups"),
    Page(path="/groups/{name}", title="Group", template="group.html", show=_group),
    Page(path="/topics", title="Topics", template="topics.html", show=_topics, entry="Topics"),
    Page(path="/doctor", title="Doctor", template="doctor.html", show=_doctor, entry="Doctor"),
    Page(
        path="/audit-log",
        title="Audit log",
        template="audit-log.html",
        show=_audit_log,
        entry="Audit log",
    ),
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


def _page(services: Services, page: Page) -> Callable[..., object]:
    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        found = services.gate.of_page(request)
        if found is None:
            return to_sign_in(request)
        visit = Visit(services, request, *found)
        context = await page.show(visit)
        if "goto" in context:
            return RedirectResponse(context["goto"], 303)
        notice = "" if visit.session is None else services.gate.sessions.pop_notice(visit.session)
        return rendered(page.template, visit, {"title": page.title, "notice": notice, **context})

    return endpoint


def _form(services: Services, form: Form) -> Callable[..., object]:
    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        fields = await fields_of(request)
        session = services.gate.check_change(request, fields.pop("csrf", ""))
        done = await form.act(services, session.principal, fields)
        services.answers.forget()
        services.gate.sessions.set_notice(session, done.said)
        return RedirectResponse(done.address, 303)

    return endpoint


def _sign_in_page(services: Services) -> Callable[..., object]:
    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        wanted = safe_next(request.query_params.get("next", "/"))
        if not services.gate.has_tokens:
            return RedirectResponse(wanted, 303)
        return plain_page("sign-in.html", next=wanted, wrong="")

    return endpoint


def _sign_in(services: Services) -> Callable[..., object]:
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


def _sign_out(services: Services) -> Callable[..., object]:
    async def endpoint(request: Request) -> Response:
        services.gate.check_host(request)
        response = RedirectResponse(SIGN_IN, 303)
        services.gate.sign_out(request, response)
        return response

    return endpoint
