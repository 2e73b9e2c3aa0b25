"""Dead letters on the page and by the API, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbridge.checker.admin.dead.describe import as_json
from halfbridge.checker.admin.dead.letters import Remedy, Wanted
from halfbridge.testkit.memory import MemoryStack
from halfbridge.web.api.dead_letters import BULK_MAX, bring_back
from halfbridge.web.guards import Refusal
from tests.kit.dead_letters import TOPIC, Scene, sent, txn
from tests.kit.web import MemoryWeb


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
    """More is a matter for the command; who comes second is told so."""
    services = web.web.services
    given = {"reason": "a"}
    for names in (frozenset[str](), frozenset(map(str, range(BULK_MAX + 1)))):
        with pytest.raises(Refusal, match="choose 1 to"):
            bring_back(services, names, Remedy.RESUME, given, who="ann")
    monkeypatch.setattr("halfbridge.web.services.CHANGE_WAIT_S", 0.01)
    with services.changing(), pytest.raises(Refusal, match="under way"):
        bring_back(services, frozenset({"a"}), Remedy.RESUME, given, who="ann")
    assert Wanted(ids=frozenset({"a"})).ids
