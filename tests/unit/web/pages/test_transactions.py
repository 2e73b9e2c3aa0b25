"""Undecided transactions, lives and decisions, on the page and by the API, in memory."""

import html
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbridge import Message
from halfbridge.checker.admin.transactions import plain
from halfbridge.testkit.memory import MemoryStack
from tests.kit.web import READ_TOKEN, MemoryWeb
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, sent, unknown

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack(partitions=1) as made:
        made.create_topic(TOPIC)
        yield made


@pytest.fixture
def web(stack: MemoryStack, tmp_path: Path) -> MemoryWeb:
    """An operator on a server that allows changes."""
    return MemoryWeb(stack, tmp_path, allow_changes=True)


def _undecided(stack: MemoryStack, *values: bytes) -> str:
    producer = stack.producer(GROUP, checker=unknown)
    producer.start()
    return sent(producer, *(values or (b"two shirts",))).id


def test_the_page_says_that_nothing_is_undecided(web: MemoryWeb) -> None:
    """An empty list is a sentence on the page, and an empty list in the API."""
    assert "Nothing is undecided" in web.get("/transactions").text
    body = web.get("/api/v1/transactions").json()
    assert (body["transactions"], body["total"]) == ([], 0)


def test_page_and_api_say_what_the_command_says(stack: MemoryStack, web: MemoryWeb) -> None:
    """All three show what one library function returns."""
    wanted = _undecided(stack, b"one", b"two")
    stack.advance(seconds=8)
    page = web.get("/transactions").text
    assert f'href="/transactions/{wanted}"' in page
    assert f">{wanted[:8]}…{wanted[-4:]}</a>" in page
    assert f'data-copy="{wanted}"' in page
    body = web.get("/api/v1/transactions").json()
    listed = plain.listing(Operator(stack).listed())
    assert body["transactions"][0].keys() == listed["transactions"][0].keys()
    assert body["transactions"][0]["id"] == wanted == listed["transactions"][0]["id"]
    life = web.get(f"/api/v1/transactions/{wanted}").json()
    assert life["events"] == plain.life(Operator(stack).shown(wanted))["events"]
    page = web.get(f"/transactions/{wanted}").text
    for sentence in web.get(f"/api/v1/transactions/{wanted}/explain").json()["sentences"]:
        assert html.escape(sentence, quote=False)[:60] in html.unescape(page).replace("&", "&amp;")
    assert page.count("<circle") == len(life["events"])
    assert "not to scale" in page


def test_lists_are_searched_and_paged(stack: MemoryStack, web: MemoryWeb) -> None:
    """By group, topic and age, a part at a time."""
    ids = [_undecided(stack) for _ in range(5)]
    first = web.get("/api/v1/transactions?limit=2").json()
    assert (first["total"], first["next_offset"]) == (5, 2)
    rest = web.get("/api/v1/transactions?limit=3&offset=2").json()
    assert rest["next_offset"] is None
    found = [each["id"] for each in (*first["transactions"], *rest["transactions"])]
    assert sorted(found) == sorted(ids)
    for query in ("group=none", "topic=none", "older_than_s=1000"):
        assert web.get(f"/api/v1/transactions?{query}").json()["total"] == 0
        assert "that fits the search" in web.get(f"/transactions?{query}").text
    page = web.get("/transactions?limit=2&offset=2").text
    assert "Previous" in page
    assert "Next" in page
    assert web.get(f"/transactions?id={ids[0]}").headers["location"] == f"/transactions/{ids[0]}"


def test_a_key_is_searched(stack: MemoryStack, web: MemoryWeb) -> None:
    """The page and the API find what the command finds, decided ones too, and show no key."""
    producer = stack.producer(GROUP, checker=unknown)
    producer.start()
    delivered = sent(producer, b"one", key=b"order-42\xff")
    delivered.commit()
    stack.advance(seconds=2)
    key = "order-42%5Cxff"
    body = web.get(f"/api/v1/find?key={key}").json()
    (only,) = body["transactions"]
    assert (only["id"], only["state"], body["total"]) == (delivered.id, "COMMITTED", 1)
    assert "key" not in only
    page = web.get(f"/transactions?key={key}&group={GROUP}").text
    assert f'href="/transactions/{delivered.id}"' in page
    assert only["outcome"].startswith("delivered to orders[")
    assert only["outcome"] in page
    assert web.get(f"/api/v1/find?key={key}&topic=none").json()["total"] == 0
    assert "No message with this key" in web.get(f"/transactions?key={HOSTILE}&topic=none").text
    assert HOSTILE not in web.get(f"/transactions?key={HOSTILE}").text
    assert web.get("/api/v1/find").status_code == 400
    assert web.get("/api/v1/find?key=").status_code == 400
    stack.advance(seconds=20)
    assert web.get(f"/api/v1/find?key={key}&since_s=10").json()["total"] == 0
    assert web.get(f"/api/v1/find?key={key}&older_than_s=10").json()["total"] == 1


def test_what_strangers_wrote_is_text(stack: MemoryStack, web: MemoryWeb) -> None:
    """Ids, groups, topics and reasons may be any text, also one that is no Unicode."""
    nasty = f"{HOSTILE}\u202e\ud800"
    Operator(stack).write_half(HOSTILE, 0, producer_group=HOSTILE, real_topic=HOSTILE)
    stack.advance(seconds=1)
    for path in ("/transactions", f"/transactions?group={HOSTILE}"):
        page = web.get(path).text
        assert HOSTILE not in page
        assert html.escape(HOSTILE) in page
    body = web.get("/api/v1/transactions").json()
    assert body["transactions"][0]["id"] == HOSTILE
    assert web.get("/transactions/%3Cscript%3E?from_ms=0").status_code == 404
    refused = web.get(f"/transactions?offset={nasty.encode('utf-8', 'replace').hex()}")
    assert refused.status_code == 400


def test_an_unknown_transaction_is_not_found(stack: MemoryStack, web: MemoryWeb) -> None:
    """404 for an id that could be one; 400 for one that says no time."""
    unknown_id = stack.machine.ports(stack.machine.process("somebody")).transaction_id()
    assert web.get(f"/api/v1/transactions/{unknown_id}").status_code == 404
    assert web.get(f"/transactions/{unknown_id}").status_code == 404
    assert "give from_ms" in web.get("/api/v1/transactions/order-17").json()["detail"]


def test_a_commit_delivers_and_is_in_the_audit_log(stack: MemoryStack, web: MemoryWeb) -> None:
    """By the page's form: the message comes out, and the log says who and why."""
    wanted = _undecided(stack)
    stack.advance(seconds=8)
    page = web.get(f"/transactions/{wanted}").text
    assert "Decide by hand" in page
    fields = {"csrf": web.csrf(), "reason": f"seen {HOSTILE}", "messages": "1"}
    answer = web.post(f"/transactions/{wanted}/commit", **fields)
    assert answer.status_code == 303, answer.text
    page = web.get(answer.headers["location"]).text
    assert "COMMIT is the first decision" in page
    assert "Decide by hand" not in page
    stack.advance(seconds=2)
    assert [each.value for each in stack.read_committed(TOPIC)] == [b"two shirts"]
    log = web.get("/audit-log").text
    assert "alice" in log
    assert "tx commit" in log
    assert HOSTILE not in log
    (done, intended) = web.get("/api/v1/audit-log").json()["actions"]
    assert (intended["outcome"], done["outcome"]) == ("INTENDED", "DONE")
    assert (done["who"], done["why"]) == ("alice", f"seen {HOSTILE}")
    assert web.get("/api/v1/audit-log?actor=nobody").json()["actions"] == []


def test_a_rollback_by_the_api_and_a_second_decision(stack: MemoryStack, web: MemoryWeb) -> None:
    """The first decision rules, and the second request gets 409 with it."""
    wanted = _undecided(stack)
    stack.advance(seconds=8)
    answer = web.call(f"/api/v1/transactions/{wanted}/rollback", reason="cancelled")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["outcome"], answer.json()["decision"]) == ("DONE", "ROLLBACK")
    stack.advance(seconds=2)
    again = web.call(f"/api/v1/transactions/{wanted}/commit", reason="no", messages=1)
    assert again.status_code == 409
    assert "ROLLED_BACK already" in again.json()["detail"]
    assert stack.read_committed(TOPIC) == []


def test_a_young_transaction_is_left_to_its_producer(stack: MemoryStack, web: MemoryWeb) -> None:
    """409 before the first check, unless the operator forces it; COMMIT says of how many."""
    wanted = _undecided(stack)
    path = f"/api/v1/transactions/{wanted}/commit"
    assert web.call(path, reason="now", messages=1).status_code == 409
    assert web.call(path, reason="now", force=True).status_code == 400
    both = web.call(path, reason="now", force=True, messages=1, all_messages=True)
    assert both.status_code == 400
    assert web.call(path, reason="now", force=True, messages=1).status_code == 200


def test_a_reader_sees_no_form(stack: MemoryStack, tmp_path: Path) -> None:
    """Neither without the role nor without --allow-changes."""
    wanted = _undecided(stack)
    stack.advance(seconds=8)
    reader = MemoryWeb(stack, tmp_path, token=READ_TOKEN, allow_changes=True)
    read_only = MemoryWeb(stack, tmp_path)
    for web in (reader, read_only):
        page = web.get(f"/transactions/{wanted}").text
        assert "Decide by hand" not in page
        assert "read-only" in page
        answer = web.post(f"/transactions/{wanted}/commit", csrf=web.csrf(), reason="a")
        assert answer.status_code == 403


def test_a_delivered_transaction_shows_its_end(stack: MemoryStack, web: MemoryWeb) -> None:
    """Half, decision and delivery, each at its place."""
    producer = stack.producer(GROUP, checker=unknown)
    producer.start()
    with producer.begin() as tx:
        tx.send(Message(TOPIC, key=b"k", value=b"one"))
    stack.advance(seconds=2)
    page = web.get(f"/transactions/{tx.id}").text
    for style in ("half", "decision", "delivery"):
        assert f'class="mark {style}"' in page
    assert "COMMITTED" in page


def test_groups_are_shown_with_what_waits(stack: MemoryStack, web: MemoryWeb) -> None:
    """Without a group a sentence; with one its members and ops, as the command says them."""
    assert web.get("/api/v1/groups").json()["groups"] == []
    assert "No producer group was seen" in web.get("/groups").text
    wanted = _undecided(stack)
    stack.advance(seconds=8)
    body = web.get("/api/v1/groups").json()
    assert [each["group"] for each in body["groups"]] == [GROUP]
    assert body["groups"][0]["undecided"] == 1
    assert web.get(f"/api/v1/groups/{GROUP}").json() == body["groups"][0]
    web.web.services.answers.forget()
    assert f'href="/groups/{GROUP}"' in web.get("/groups").text
    assert wanted in web.get(f"/groups/{GROUP}").text
    assert web.get("/api/v1/groups/nobody").status_code == 404
    assert web.get("/groups/nobody").status_code == 404
