"""Pages: what they list, change and draw, and how they write times, sizes and numbers."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.dead.describe import as_json
from halfbridge.checker.admin.dead.letters import Remedy, Wanted
from halfbridge.checker.admin.doctor.facts import Finding, finding
from halfbridge.checker.admin.operator_log import OperatorLog
from halfbridge.checker.admin.shape import DEAD_RETENTION_MS
from halfbridge.checker.admin.topics import RealTopic, create_real_topic
from halfbridge.checker.admin.transactions.life import Event, Kind, Verdict
from halfbridge.serde.settings_topic import TopicType
from halfbridge.testkit.memory import MemoryStack
from halfbridge.web.api.dead_letters import BULK_MAX, bring_back
from halfbridge.web.guards import Refusal
from halfbridge.web.pages.page import (
    TEMPLATES,
    command,
    duration,
    labelled,
    milliseconds,
    moment,
    name,
    number,
    short_id,
    size,
    sparkline,
)
from halfbridge.web.pages.table import FINDINGS_MAX, PAGES
from halfbridge.web.pages.transactions import (
    LEFT,
    MARKS_MAX,
    RIGHT,
    TICK_DISTANCE,
    WIDTH,
    text_of,
    timeline,
)
from halfbridge.web.watch import Reading, overview_of
from tests.kit.dead_letters import TOPIC, Scene, sent, txn
from tests.kit.web import MemoryWeb


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        *[(None, "-"), (0, "0 ms"), (0.0123, "12 ms"), (1.25, "1.2 s"), (42.4, "42 s")],
        *[(60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (3723, "1 h 2 min")],
        *[(86_400, "1 d"), (90_000, "1 d 1 h"), (math.inf, "no limit")],
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float | None, expected: str) -> None:
    """The larger unit comes first, and a rest of nothing is left out."""
    assert duration(seconds) == expected
    assert milliseconds(None if seconds is None else seconds * 1000) == expected


@pytest.mark.parametrize(
    ("at_ms", "expected"),
    [
        (1_700_000_000_123, "2023-11-14 22:13:20.123 UTC"),
        (None, "-"),
        (-1, "-"),
        (10**18, f"{10**18} ms"),
    ],
)
def test_a_moment_that_no_calendar_has_is_a_number(at_ms: int | None, expected: str) -> None:
    """A stranger's timestamp breaks no page."""
    assert moment(at_ms) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        *[(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB")],
        *[(20 * 1024**2, "20 MiB"), (1024**4, "1024 GiB")],
    ],
)
def test_a_size_has_a_unit_that_fits(count: int | None, expected: str) -> None:
    """Bytes are counted in 1,024s."""
    assert size(count) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0190", "0190"), ("019a8f0e5c7d7b3e9a4f2c1d0b8e6a57", "019a8f0e…6a57")],
)
def test_a_long_id_is_shortened(text: str, expected: str) -> None:
    """Its beginning is its time, and its end tells it from others of that time."""
    assert short_id(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (0, "0"), (0.25, "0.2"), (3.0, "3"), (1_234_567.8, "1,234,568")],
)
def test_a_number_has_its_thousands_apart(value: float | None, expected: str) -> None:
    """Small ones have a decimal, if it is not 0."""
    assert number(value) == expected


def test_a_sparkline_needs_two_values() -> None:
    """One reading is no line; equal values are a flat one."""
    assert sparkline((1.0,)) == ""
    assert sparkline((0.0, 0.0)).count(",26.0") == 2
    assert "120.0,2.0" in sparkline((0.0, 5.0))


def test_words_of_a_command_are_whole_and_escaped() -> None:
    """What is copied from the page is the command."""
    shown = command("kafka --topic <x>")
    spans = '<span class="word">kafka</span> <span class="word">--topic</span>'
    assert shown == f'{spans} <span class="word">&lt;x&gt;</span>'


def test_a_name_may_be_broken_behind_its_parts() -> None:
    """Not in the middle of a word; what strangers wrote is text, in one line."""
    assert name("a_b.c-d") == "a_<wbr>b.<wbr>c-d"
    assert name("<b>\n") == "&lt;b&gt;\\n"


def test_cells_name_their_columns() -> None:
    """In each row by their order; not a cell over several columns."""
    head = '<thead><tr><th scope="col">Id</th><th scope="col" class="n">Age</th></tr></thead>'
    cells = '<td><a>1</a></td>\n<td class="n">2</td>'
    shown = labelled(f'{head}<tr>{cells}</tr><tr>{cells}</tr><tr><td colspan="2">none</td></tr>')
    row = '<tr><td data-label="Id"><a>1</a></td>\n<td data-label="Age" class="n">2</td></tr>'
    assert shown == f'{head}{row}{row}<tr><td colspan="2">none</td></tr>'


# --- the overview page, in memory ----------------------------------------------------------


def _live(*found: Finding, **more: object) -> str:
    """Return the part of the page that is read again and again."""
    template = TEMPLATES.get_template(PAGES[0].template)
    given = {"has_daemons": True, "health": (), "overview": None, "lags": {}, **more}
    given |= {"findings": found, "findings_max": FINDINGS_MAX}
    return "".join(template.blocks["main"](template.new_context(given)))


def test_findings_of_doctor_are_reported() -> None:
    """Warnings and errors, the first few; a note is left to the page of doctor."""
    some = [finding("no-responder", f"nobody answers {n}", "start") for n in range(7)]
    page = _live(finding("idle-workers", "too many", "fewer"), *some)
    assert "7 findings" in page
    assert page.count("nobody answers") == FINDINGS_MAX
    assert "too many" not in page
    assert "no findings" in _live()


def test_half_messages_that_wait_are_not_called_undecided() -> None:
    """The daemon counts committed ones too whose real topic is missing; its list has fewer."""
    page = _live(overview=overview_of([Reading(at_s=0, totals={"undecided": 10.0})]))
    tile = page.split("<h2>waiting</h2>")[1].split("</section>")[0]
    assert "10<small> messages" in tile
    assert "for a decision or a real topic" in tile
    assert "undecided" not in tile


# --- the topics of an installation and what is wrong with them, in memory ------------------


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    with MemoryStack(partitions=1) as made:
        yield made


def test_page_and_api_say_what_the_command_says(stack: MemoryStack, tmp_path: Path) -> None:
    """Each problem with its topic and the command that mends it."""
    web = MemoryWeb(stack, tmp_path)
    stack.machine.broker.topic(stack.config.names.half).settings["cleanup.policy"] = "compact"
    body = web.get("/api/v1/topics").json()
    assert not body["ok"]
    (problem,) = [each for each in body["problems"] if "compact" in each["what"]]
    page = web.get("/topics").text
    assert "Problems" in page
    assert problem["subject"] in page
    assert problem["fix"].split()[0] in page


def test_topics_are_listed_with_their_use_and_retention(stack: MemoryStack, tmp_path: Path) -> None:
    """Internal topics, and of the real ones those with a type; each problem counts at its topic."""
    names, broker = stack.config.names, stack.machine.broker
    give_type(stack, RealTopic("orders", TopicType.TRANSACTION, partitions=3, replicas=1))
    stack.create_topic("others")  # somebody's, for all that the installation can tell
    broker.topic(names.half).settings["cleanup.policy"] = "compact"
    broker.topic("orders").settings["retention.ms"] = "-1"
    web = MemoryWeb(stack, tmp_path)
    listed = {each["name"]: each for each in web.get("/api/v1/topics").json()["topics"]}
    assert {name: each["use"] for name, each in listed.items()} == {
        names.half: "half",
        names.op: "op",
        names.dead: "dead letters",
        names.settings: "settings",
        names.audit: "audit",
        "orders": "transaction",
    }
    assert listed["orders"] == {
        "name": "orders",
        "use": "transaction",
        "partitions": 3,
        "retention_ms": -1,
        "is_compacted": False,
        "problems": 0,
    }
    assert listed[names.half]["is_compacted"]
    assert listed[names.half]["problems"] == 1
    assert listed[names.dead]["retention_ms"] == DEAD_RETENTION_MS
    page = web.get("/topics").text
    assert "<code>orders</code>" in page
    assert "30 d" in page
    assert "others" not in page


def give_type(stack: MemoryStack, topic: RealTopic) -> None:
    """Make a real topic with a type, as `topics create NAME --type` does."""
    machine = stack.machine
    cluster = Cluster("memory", ports=machine.ports(machine.process("operator")))
    with appending(cluster) as appender:
        log = OperatorLog(cluster, stack.config.names, appender, who="operator@host")
        create_real_topic(cluster, stack.config.names, log, appender, topic)


# --- dead letters on the page and by the API, in memory ------------------------------------


@pytest.fixture
def scene() -> Iterator[Scene]:
    """An installation with a real topic."""
    with MemoryStack(partitions=1) as stack:
        stack.create_topic(TOPIC)
        yield Scene(stack)


@pytest.fixture
def web(scene: Scene, tmp_path: Path) -> MemoryWeb:
    """An operator on a server that allows changes."""
    return MemoryWeb(scene.stack, tmp_path, allow_changes=True)


def test_no_dead_letters_are_said(web: MemoryWeb) -> None:
    """An empty list is a sentence, without a form."""
    page = web.get("/dead-letters").text
    assert "There are no open dead letters" in page
    assert "Resume" not in page
    assert web.get("/api/v1/dead-letters").json()["transactions"] == []
    assert web.get("/api/v1/dead-letters/none").status_code == 404
    assert web.get("/dead-letters/none").status_code == 404


def test_letters_are_listed_by_transaction(scene: Scene, web: MemoryWeb) -> None:
    """As the command lists them; by reason, group and topic; one page after the other."""
    scene.undeliverable(1, count=2)
    scene.incomplete(2)
    scene.settle()
    body = web.get("/api/v1/dead-letters").json()
    assert body["transactions"] == [as_json(each) for each in scene.find()]
    assert body["total"] == 2
    assert web.get("/api/v1/dead-letters?limit=1").json()["next_offset"] == 1
    assert web.get("/api/v1/dead-letters?reason=INCOMPLETE").json()["total"] == 1
    assert web.get("/api/v1/dead-letters?topic=absent").json()["total"] == 1
    assert web.get("/api/v1/dead-letters?group=none").json()["total"] == 0
    assert web.get("/api/v1/dead-letters?reason=WHY").status_code == 400
    page = web.get("/dead-letters").text
    assert f'href="/dead-letters/{txn(1)}"' in page
    assert f'value="{txn(2)}"' in page
    one = web.get(f"/dead-letters/{txn(1)}").text
    assert one.count("UNDELIVERABLE") >= 2
    assert web.get(f"/api/v1/dead-letters/{txn(1)}").json()["lives"][0]["messages"] == 2


def test_chosen_ones_are_redelivered_together(scene: Scene, web: MemoryWeb) -> None:
    """In bulk on the page: each message once, also when the form is sent twice."""
    scene.undeliverable(1, count=2)
    scene.undeliverable(2)
    scene.settle()
    scene.stack.create_topic("absent")
    fields = {"csrf": web.csrf(), "reason": "the topic is there now", "id": [txn(1), txn(2)]}
    answer = web.post("/dead-letters-redeliver", **fields)
    assert answer.headers["location"] == "/dead-letters"
    assert "2 of 2 transactions redelivered" in web.get("/dead-letters").text
    assert web.post("/dead-letters-redeliver", **fields).status_code == 404
    scene.settle()
    assert scene.delivered("absent") == sent((1, 0), (1, 1), (2, 0))
    page = web.get(f"/dead-letters/{txn(1)}").text
    assert "REDELIVERED by alice: the topic is there now" in page
    assert "<form class=" not in page.split("<main")[1]
    actions = web.get("/api/v1/audit-log?action=dead").json()["actions"]
    assert {each["who"] for each in actions} == {"alice"}


def test_what_is_refused_says_why(scene: Scene, web: MemoryWeb) -> None:
    """409 with the library's own words; with the operator's choice it is done."""
    scene.incomplete(1)
    scene.settle()
    path = f"/api/v1/dead-letters/{txn(1)}/redeliver"
    answer = web.call(path, reason="a test")
    assert answer.status_code == 409
    assert "messages 1 are missing" in answer.json()["detail"]
    assert web.call(f"/api/v1/dead-letters/{txn(1)}/resume", reason="a").status_code == 409
    done = web.call(path, reason="a test", accept_partial=True)
    assert [each["id"] for each in done.json()["done"]] == [txn(1)]
    assert web.call(path, reason="a test").status_code == 404


def test_one_that_was_given_up_is_resumed_on_its_page(scene: Scene, web: MemoryWeb) -> None:
    """The page offers what helps, and nothing else."""
    scene.discarded(1)
    scene.settle()
    page = web.get(f"/dead-letters/{txn(1)}").text
    assert f'action="/dead-letters/{txn(1)}/resume"' in page
    assert "redeliver" not in page.split("<main")[1].lower()
    answer = web.post(f"/dead-letters/{txn(1)}/resume", csrf=web.csrf(), reason="try again")
    assert answer.headers["location"] == f"/dead-letters/{txn(1)}"
    assert [each.state for each in scene.find(1)] == ["RESUMED"]


def test_bulk_is_bounded_and_changes_come_one_after_the_other(
    web: MemoryWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is a matter for the command; the second request gets an error."""
    services = web.web.services
    given = {"reason": "a"}
    for names in (frozenset[str](), frozenset(map(str, range(BULK_MAX + 1)))):
        with pytest.raises(Refusal, match="choose 1 to"):
            bring_back(services, names, Remedy.RESUME, given, who="ann")
    monkeypatch.setattr("halfbridge.web.services.CHANGE_WAIT_S", 0.01)
    with services.changing(), pytest.raises(Refusal, match="under way"):
        bring_back(services, frozenset({"a"}), Remedy.RESUME, given, who="ann")
    assert Wanted(ids=frozenset({"a"})).ids


# --- positions of the marks of a transaction's life ----------------------------------------

BEGIN_MS = 1_700_000_000_000


def _event(kind: Kind, after_ms: int | None, **more: Any) -> Event:
    at_ms = None if after_ms is None else BEGIN_MS + after_ms
    return Event(kind=kind, at_ms=at_ms, topic="t", partition=0, offset=0, **more)


def test_marks_stand_in_the_order_of_time() -> None:
    """The first at the left edge, the last at the right one, later ones never before earlier."""
    steps = (0, 0, 1, 6_000, 6_020, 3_600_000)
    picture = timeline([_event(Kind.HALF, each) for each in steps])
    places = [mark.x for mark in picture.marks]
    assert places == sorted(places)
    assert len(set(places)) == len(steps)  # also what came at the same moment can be seen
    assert (places[0], places[-1]) == (LEFT, WIDTH - RIGHT)
    short, long = places[2] - places[1], places[5] - places[4]
    assert short > 0
    assert short < long < 10 * short


def test_each_kind_has_its_lane_and_style() -> None:
    """A decision that lost looks other than the one that won."""
    won = _event(Kind.DECISION, 1, verdict=Verdict.WON)
    lost = _event(Kind.DECISION, 2, verdict=Verdict.CONFLICT)
    picture = timeline([*(_event(kind, 0) for kind in Kind), won, lost])
    lanes = dict(picture.lanes)
    by_kind = dict(zip(Kind, picture.marks, strict=False))
    assert by_kind[Kind.COPY].y == lanes["messages"]
    assert by_kind[Kind.ANSWER].y == lanes["checks"]
    assert by_kind[Kind.DEAD_LETTER].y == lanes["delivery"]
    assert [mark.style for mark in picture.marks[-2:]] == ["decision", "other"]
    assert all(0 < mark.y < picture.height for mark in picture.marks)


def test_times_of_the_axis_do_not_overlap() -> None:
    """Fewer times than marks, each said once."""
    picture = timeline([_event(Kind.CHECK, each * 1000) for each in range(100)])
    places = [x for x, _ in picture.ticks]
    assert all(b - a >= TICK_DISTANCE for a, b in itertools.pairwise(places))
    assert picture.ticks[0][1] == "begin"
    assert len({text for _, text in picture.ticks}) == len(picture.ticks)
    assert LEFT >= TICK_DISTANCE / 2 <= RIGHT  # each time stands below its mark, the last one too


def test_a_life_of_any_length_is_a_picture_of_bounded_size() -> None:
    """1,000 messages with copies are in the table."""
    picture = timeline([_event(Kind.HALF, each) for each in range(MARKS_MAX + 7)])
    assert len(picture.marks) == MARKS_MAX
    assert picture.left_out == 7


def test_strange_times_break_nothing() -> None:
    """No event, one event, events without a time, and clocks that went back."""
    assert timeline([]).marks == ()
    assert len(timeline([_event(Kind.HALF, None)]).marks) == 1
    steps = (None, 5, None, 3, 10**15)
    places = [mark.x for mark in timeline([_event(Kind.HALF, each) for each in steps]).marks]
    assert places == sorted(places)
    assert places[-1] <= WIDTH - RIGHT


def test_a_mark_says_what_it_is() -> None:
    """For a pointer that rests on it; a stranger's text has one line."""
    event = _event(
        Kind.DECISION, 0, op="COMMIT", source="PRODUCER", actor="a\nb", verdict=Verdict.WON
    )
    assert text_of(event) == ("decision COMMIT by PRODUCER a\\nb WON, 2023-11-14 22:13:20.000 UTC")
