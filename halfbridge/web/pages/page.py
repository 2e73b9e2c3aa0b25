"""What a page is, and how its template is filled in: times, sizes and numbers in words too."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, RedirectResponse, Response

from halfbridge.logs import one_line
from halfbridge.serde.units import KIB
from halfbridge.web.api.routes import Argument, read_arguments
from halfbridge.web.guards import Refusal, body_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from halfbridge.web.gate import Principal, Session
    from halfbridge.web.services import Services
    from halfbridge.web.work import CachedAnswer, CachePolicy

T = TypeVar("T")
FIELDS_MAX = 200  # a bulk resume has an id for each of 100 transactions, and options
SIGN_IN = "/sign-in"
# A page does not wait for the log to be read: it shows the answer of before, or says that the first
# one is being made, and asks again.
WAIT_S = 0.2
# A part of a page that could not be made is asked for again after this time, as readings are made
# (watch.SAMPLE_S). Shorter loads brokers in trouble.
ERROR_AGAIN_S = 10
# Ids that this server's templates give the parts of a page.
_PART = re.compile(r"[a-z][a-z-]{0,40}")
# Characters of an id that a list shows.
_ID_BEGINS, _ID_ENDS = 8, 4
_HERE = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page by somebody who may see it; no session on a server without tokens."""

    services: Services
    request: Request
    principal: Principal
    session: Session | None

    @property
    def may_change(self) -> bool:
        """Whether the page shows forms that change anything."""
        return self.services.gate.may_change(self.principal, self.session)

    async def kept(
        self, key: tuple[object, ...], read: Callable[[], T], keeps: CachePolicy
    ) -> CachedAnswer[T] | None:
        """Return an answer that all visits share; None: the first one is being made.

        `key` is what is asked for, with all its arguments; `read` makes the answer, in a thread.
        """
        return await self.services.answers.get(
            key, read, fresh_s=keeps.fresh_s, old_s=keeps.old_s, wait_s=WAIT_S
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page."""

    path: str  # its address, with {arguments}
    title: str
    template: str
    # Returns what the template shows, or the address to `goto` instead.
    show: Callable[[Visit], Awaitable[dict[str, Any]]]
    entry: str = ""  # its name in the navigation; empty: it is not there


class Fields(dict[str, str]):
    """The fields of a form, and the arguments in its address; of one that is repeated the last."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self._pairs = tuple(pairs)

    def every(self, name: str) -> tuple[str, ...]:
        """Return all values of a field that is repeated."""
        return tuple(text for key, text in self._pairs if key == name)


@dataclass(frozen=True, slots=True)
class Done:
    """One sentence about a form's result, for the page at `address`, which is shown next."""

    said: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One form that changes something; `act` gets its fields, those of the path among them."""

    path: str
    act: Callable[[Services, Principal, Fields], Awaitable[Done]]


def _shown(value: Any) -> Any:
    """Return text from records as one line; markup, this server's own, is unchanged."""
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _digest_of(name: str) -> str:
    return sha256((_HERE / "static" / name).read_bytes()).hexdigest()[:12]


TEMPLATES = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_shown,
    trim_blocks=True,
    lstrip_blocks=True,
)


def duration(seconds: float | None) -> str:
    """Return a length of time in two units at most: 0.012 -> 12 ms, 3723 -> 1 h 2 min."""
    if seconds is None:
        return NOTHING
    if math.isinf(seconds):
        return "no limit"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _SMALL:
        return f"{seconds:.1f} s"
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    for unit, name, part, part_name in (
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if seconds >= unit:
            whole, rest = divmod(int(seconds), unit)
            return (
                f"{whole} {name} {rest // part} {part_name}" if rest // part else f"{whole} {name}"
            )
    raise AssertionError("a minute is the least unit")


def size(count: int | None) -> str:
    """Return bytes in a unit that fits."""
    if count is None:
        return NOTHING
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < KIB or unit == "GiB":
            return (
                f"{value:.0f} {unit}" if unit == "B" or value >= _SMALL else f"{value:.1f} {unit}"
            )
        value /= KIB
    raise AssertionError("GiB is the last unit")


def moment(at_ms: int | None) -> str:
    """Return a time in UTC; a time that no calendar has is shown as its number."""
    if at_ms is None or at_ms < 0:
        return NOTHING
    try:
        when = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return f"{when:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d} UTC"


def labelled(rows: str) -> Markup:
    """Return a table's rows with the column's heading as `data-label` of each cell.

    A narrow screen shows each row as a card, where the labels take the place of the headings. A
    cell over several columns has none. What strangers wrote in `rows` is escaped already.
    """
    rows = str(rows)  # a pattern would escape what it puts into Markup
    headings = _HEADING.findall(rows)

    def with_labels(row: re.Match[str]) -> str:
        rest = iter(headings)
        return _CELL.sub(lambda cell: f'{cell[0]} data-label="{next(rest, "")}"', row[0])

    return Markup(_ROW.sub(with_labels, rows))  # noqa: S704 (it was markup before)


def name(text: str) -> Markup:
    """Return a topic's or a group's name that a browser may also break after `_` and `.`."""
    shown = escape(one_line(text))
    return shown.replace("_", Markup("_<wbr>")).replace(".", Markup(".<wbr>"))


def short_id(text: str) -> str:
    """Return the beginning and the end of an id, so that a table has room for it."""
    shown = one_line(text)
    if len(shown) <= _ID_BEGINS + _ID_ENDS:
        return shown
    return f"{shown[:_ID_BEGINS]}…{shown[-_ID_ENDS:]}"


def number(value: float | None) -> str:
    """Return a number with thousands apart; small ones with one decimal."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if 0 < abs(value) < _SMALL and value % 1 else f"{value:,.0f}"


def milliseconds(value: float | None) -> str:
    """Return a length of time that is given in milliseconds."""
    return duration(None if value is None else value / 1000)


def sparkline(values: tuple[float, ...]) -> Markup:
    """Return a small picture of how a number went, the oldest value first."""
    if len(values) < 2:  # noqa: PLR2004 (a line has two ends)
        return Markup("")
    most = max(values) or 1.0
    step = _SPARK_WIDTH / (len(values) - 1)
    points = " ".join(
        f"{index * step:.1f},{_SPARK_HEIGHT - 2 - (_SPARK_HEIGHT - 4) * value / most:.1f}"
        for index, value in enumerate(values)
    )
    return Markup(  # noqa: S704 (numbers only)
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}"'
        ' preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline points="{points}"/></svg>'
    )


def command(text: str) -> Markup:
    """Return a command whose words are not broken: a browser breaks `--name` after its hyphens."""
    words = (f'<span class="word">{escape(word)}</span>' for word in text.split(" "))
    return Markup(" ".join(words))  # noqa: S704 (each word is escaped)


TEMPLATES.filters.update(
    {
        "command": command,
        "duration": duration,
        # An id as a form sends it back: whole, however it looks.
        "exactly": lambda text: Markup(escape(text)),  # noqa: S704 (escaped)
        "in_path": lambda text: Markup(quote(text, safe="")),  # noqa: S704 (quoted)
        "labelled": labelled,
        "milliseconds": milliseconds,
        "moment": moment,
        "name": name,
        "size": size,
        "number": number,
        "short_id": short_id,
        "sparkline": sparkline,
    }
)
# Browsers may keep these files: an address holds what is in the file.
TEMPLATES.globals["static"] = {
    name.replace(".", "_").replace("-", "_"): f"/static/{name}?{_digest_of(name)}"
    for name in ("style.css", "htmx.min.js", "copy.js", "icon.svg")
}
TEMPLATES.globals["with_query"] = lambda query, **more: urlencode({**query, **more})


def rendered(template: str, visit: Visit, context: Mapping[str, object]) -> HTMLResponse:
    """Return a page for somebody who has signed in."""
    session = visit.session
    text = TEMPLATES.get_template(template).render(
        **context,
        path=visit.request.url.path,
        here=here_of(visit.request),
        principal=visit.principal,
        csrf="" if session is None else session.csrf,
        signed_in=session is not None,
        may_change=visit.may_change,
        installation=visit.services.config.topic_prefix or "default",
        brokers=visit.services.config.bootstrap_servers,
    )
    return HTMLResponse(text)


def plain_page(template: str, status: int = 200, **context: object) -> HTMLResponse:
    """Return a page for anybody: it shows nothing about the installation."""
    return HTMLResponse(TEMPLATES.get_template(template).render(**context), status)


def error_page(request: Request, refusal: Refusal) -> Response:
    """Return what a browser shows for a refusal: a page, or the part of a page that was asked for.

    A part has the id that the page looks for in the answer, and asks again by itself.
    """
    part = request.headers.get("hx-target", "")
    if request.headers.get("hx-request") != "true" or not _PART.fullmatch(part):
        return plain_page("error.html", refusal.status, refusal=refusal, path=request.url.path)
    return plain_page(
        "error-part.html",
        refusal.status,
        refusal=refusal,
        id=part,
        url=here_of(request),
        again_s=ERROR_AGAIN_S,
    )


def query_of(request: Request, wanted: tuple[Argument, ...]) -> dict[str, Any]:
    """Return the arguments in a page's address; an empty field of a form counts as not given."""
    given = {name: text for name, text in request.query_params.items() if text}
    return read_arguments(wanted, given)


async def fields_of(request: Request) -> Fields:
    """Return a form's fields and its address' arguments; refuses by 400, 408, 413 and 415."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refusal(415, "a form is sent as application/x-www-form-urlencoded")
    text = (await body_of(request)).decode("utf-8", "replace")
    try:
        found = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise Refusal(400, f"a form has at most {FIELDS_MAX} fields") from error
    return Fields([*found, *request.path_params.items()])


def here_of(request: Request) -> str:
    """Return the address of a page on this server, with its query."""
    path = request.url.path
    return f"{path}?{request.url.query}" if request.url.query else path


def to_sign_in(request: Request) -> Response:
    """Send a browser to the sign-in page, and back afterwards."""
    response = RedirectResponse(f"{SIGN_IN}?{urlencode({'next': here_of(request)})}", 303)
    if request.headers.get("hx-request") == "true":  # a part of a page: the whole of it goes
        response = RedirectResponse(SIGN_IN, 401)
        response.headers["HX-Redirect"] = SIGN_IN
    return response


def safe_next(wanted: str) -> str:
    """Return an address of this server, whatever a link says."""
    is_here = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if is_here and wanted.isprintable() and wanted.isascii() else "/"


_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400  # units in which a duration is shown
_SMALL = 10  # below it, one digit after the point is shown
NOTHING = "-"
# Units of the drawing, at the ratio of a cell of the table; CSS gives it its size.
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 28
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>")
_CELL = re.compile(r"<td(?![^>]*colspan)")
