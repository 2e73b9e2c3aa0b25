"""Each route and page: who may call it, what guards it, and what errors look like."""

from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner

from halfbridge.checker.admin import cluster
from halfbridge.cli import cli
from halfbridge.web.api.routes import PREFIX
from halfbridge.web.app import ROUTES, STATIC
from halfbridge.web.config import WebConfig
from halfbridge.web.gate import FAILURES_AT_ONCE, REQUESTS_AT_ONCE, Role
from halfbridge.web.guards import BODY_BYTES_MAX
from halfbridge.web.pages.table import FORMS, PAGES
from tests.kit.web import NO_KAFKA, OPERATE_TOKEN, READ_TOKEN, WebStage, post, stage, token_file

ANY_ID = "0190"


def _address(path: str) -> str:
    return "/".join(ANY_ID if part.startswith("{") else part for part in path.split("/"))


API = [(each.method, PREFIX + _address(each.path), each.role) for each in ROUTES]
CHANGES = [path for _, path, role in API if role is Role.OPERATE]


@pytest.mark.parametrize(("method", "path", "role"), API)
def test_each_route_wants_a_token(tmp_path: Path, method: str, path: str, role: Role) -> None:
    """Without one, with a wrong one and with a session's cookie alike."""
    del role
    web = stage(tmp_path)
    for client in (web.client(), web.client("not-a-token-at-all"), web.browser(OPERATE_TOKEN)):
        answer = client.request(method, path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == 401


@pytest.mark.parametrize("path", CHANGES)
def test_changes_want_the_role_operate(tmp_path: Path, path: str) -> None:
    """A token with the role read changes nothing."""
    answer = stage(tmp_path).client(READ_TOKEN).post(path, json={"reason": "a test"})
    assert answer.status_code == 403
    assert "operate" in answer.json()["detail"]


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_wants_a_reason(tmp_path: Path, path: str) -> None:
    """The audit log says why."""
    answer = stage(tmp_path).client(OPERATE_TOKEN).post(path, json={})
    assert answer.status_code == 400
    assert "reason" in answer.json()["detail"]


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("says_so", [True, False])
def test_a_body_is_bounded(tmp_path: Path, path: str, says_so: bool) -> None:
    """With a Content-Length or without."""
    body = b" " * (BODY_BYTES_MAX + 1)
    answer = (
        stage(tmp_path)
        .client(OPERATE_TOKEN)
        .post(
            path,
            content=body if says_so else iter([body[:1000], body[1000:]]),
            headers={"Content-Type": "application/json"},
        )
    )
    assert answer.status_code == 413


@pytest.mark.parametrize("path", [_address(each.path) for each in PAGES])
def test_each_page_sends_a_stranger_to_sign_in(tmp_path: Path, path: str) -> None:
    """And back to the page afterwards."""
    web = stage(tmp_path)
    answer = web.client().get(path + "?a=b")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in?next=%2F")


@pytest.mark.parametrize("path", [_address(each.path) for each in FORMS])
def test_each_form_wants_session_origin_csrf_role_and_the_switch(tmp_path: Path, path: str) -> None:
    """Each alone is refused; nothing is changed before all of them are there."""
    fields = {"reason": "a test"}
    web = stage(tmp_path, allow_changes=True)
    assert post(web.client(), path, **fields).status_code == 401
    browser = web.browser(OPERATE_TOKEN)
    session = web.services.gate.sessions.find(browser.cookies["halfbridge_session"])
    assert session is not None
    fields["csrf"] = session.csrf
    assert post(browser, path, **{**fields, "csrf": "wrong"}).status_code == 403
    assert browser.post(path, data=fields).status_code == 403  # no Origin
    foreign = {"Origin": "http://127.0.0.1:99"}
    assert browser.post(path, data=fields, headers=foreign).status_code == 403
    reader = web.browser(READ_TOKEN)
    session = web.services.gate.sessions.find(reader.cookies["halfbridge_session"])
    assert session is not None
    assert post(reader, path, csrf=session.csrf, reason="a").status_code == 403
    still = stage(tmp_path)
    browser = still.browser(OPERATE_TOKEN)
    session = still.services.gate.sessions.find(browser.cookies["halfbridge_session"])
    assert session is not None
    assert "--allow-changes" in post(browser, path, csrf=session.csrf, reason="a").text


def test_a_token_makes_so_many_requests_a_second(tmp_path: Path) -> None:
    """Beyond that 429 with the seconds to wait, for this token alone."""
    web = stage(tmp_path)
    client = web.client(READ_TOKEN)
    found = [client.get("/api/v1/overview").status_code for _ in range(REQUESTS_AT_ONCE + 1)]
    assert found == [200] * REQUESTS_AT_ONCE + [429]
    assert client.get("/api/v1/overview").headers["retry-after"] == "1"
    assert web.client(OPERATE_TOKEN).get("/api/v1/overview").status_code == 200
    web.clock.now_s += 1
    assert client.get("/api/v1/overview").status_code == 200


def test_wrong_tokens_are_slow_to_try(tmp_path: Path) -> None:
    """After some of them even the right token waits, from this address."""
    web = stage(tmp_path)
    for each in range(FAILURES_AT_ONCE):
        assert web.client(f"wrong-wrong-{each:04}").get("/openapi.json").status_code == 401
    answer = web.client(READ_TOKEN).get("/openapi.json")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
    assert post(web.client(), "/sign-in", token=READ_TOKEN).status_code == 429
    web.clock.now_s += 5
    assert web.client(READ_TOKEN).get("/openapi.json").status_code == 200


def test_a_browser_signs_in_and_out(tmp_path: Path) -> None:
    """The cookie is not for scripts nor for other sites, and is worth nothing afterwards."""
    web = stage(tmp_path)
    browser = web.client()
    answer = post(browser, "/sign-in", token=READ_TOKEN, next="/topics?a=b")
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics?a=b")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert READ_TOKEN not in cookie
    page = browser.get("/")
    assert page.status_code == 200
    assert "Sign out grafana" in page.text
    stolen = browser.cookies["halfbridge_session"]
    assert post(browser, "/sign-out").headers["location"] == "/sign-in"
    again = web.client()
    again.cookies.set("halfbridge_session", stolen)
    assert again.get("/").status_code == 303


def test_a_wrong_token_is_reported_on_the_page(tmp_path: Path) -> None:
    """The form comes again, and names the error for who cannot see it."""
    answer = post(stage(tmp_path).client(), "/sign-in", token="wrong-wrong-wrong")
    assert answer.status_code == 401
    assert 'role="alert"' in answer.text
    assert "wrong-wrong-wrong" not in answer.text


@pytest.mark.parametrize("wanted", ["https://a.example", "//a.example", "/\\a.example", "a", ""])
def test_signing_in_leads_to_this_server_only(tmp_path: Path, wanted: str) -> None:
    """A link of a stranger's to the sign-in page leads nowhere else."""
    answer = post(stage(tmp_path).client(), "/sign-in", token=READ_TOKEN, next=wanted)
    assert answer.headers["location"] == "/"


def test_another_sites_form_signs_nobody_in_or_out(tmp_path: Path) -> None:
    """A browser sends the origin of a form."""
    client = stage(tmp_path).client()
    foreign = {"Origin": "https://a.example"}
    for path in ("/sign-in", "/sign-out"):
        answer = client.post(path, data={"token": READ_TOKEN}, headers=foreign)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_a_token_that_is_gone_ends_its_sessions(tmp_path: Path) -> None:
    """A token that became known is taken out of the file, and that is enough."""
    web = stage(tmp_path)
    browser = web.browser(READ_TOKEN)
    path = token_file(tmp_path)
    path.write_text(f"operate {OPERATE_TOKEN}\n", "utf-8")
    web.clock.now_s += 5
    assert browser.get("/").status_code == 303


def test_without_tokens_anybody_on_this_machine_reads(tmp_path: Path) -> None:
    """By an address of this machine: no name of a stranger's site may lead here."""
    del tmp_path
    web = WebStage(WebConfig(bootstrap_servers=NO_KAFKA))
    client = web.client()
    assert client.get("/").status_code == 200
    assert client.get("/api/v1/overview").status_code == 200
    assert client.get("/sign-in").headers["location"] == "/"
    for host in ("a.example", "127.0.0.1.a.example", ""):
        for path in ("/", "/api/v1/overview", "/openapi.json"):
            assert client.get(path, headers={"Host": host}).status_code == 403, host
    for host in ("localhost:9465", "[::1]:9465", "127.0.0.1"):
        assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("path", CHANGES)
def test_without_tokens_nobody_changes_anything(path: str) -> None:
    """Nobody would know who did it."""
    web = WebStage(WebConfig(bootstrap_servers=NO_KAFKA))
    assert web.client().post(path, json={"reason": "a test"}).status_code == 403


def test_every_answer_keeps_scripts_and_frames_out(tmp_path: Path) -> None:
    """Pages, errors and files alike; no header lets another site read an answer."""
    client = stage(tmp_path).browser(READ_TOKEN)
    for path in ("/", "/nothing", "/api/v1/overview", "/static/htmx.min.js", "/sign-in", "/livez"):
        headers = client.get(path, headers={"Origin": "https://a.example"}).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert not any(name.startswith("access-control") for name in headers), path
        assert ("immutable" in headers["cache-control"]) is path.startswith("/static/")


def test_a_kafka_that_does_not_answer_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """502 with what to do, as JSON and as a page; a traceback for nobody."""
    monkeypatch.setattr(cluster, "FIRST_ANSWER_S", 0.1)
    web = stage(tmp_path)
    answer = web.client(READ_TOKEN).get("/api/v1/topics")
    assert answer.status_code == 502
    assert "check that the brokers run" in answer.json()["detail"]
    page = web.browser(READ_TOKEN).get("/topics")
    assert page.status_code == 502
    assert "check that the brokers run" in page.text


def test_a_part_of_a_page_shows_its_error_and_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of the part, which said "Reading from Kafka" for ever. Other ids get a page."""
    monkeypatch.setattr(cluster, "FIRST_ANSWER_S", 0.1)
    browser = stage(tmp_path).browser(READ_TOKEN)
    part = browser.get("/topics", headers={"HX-Request": "true", "HX-Target": "topics"})
    assert part.status_code == 502
    assert part.text.startswith('<div id="topics"')
    assert 'hx-get="/topics"' in part.text
    assert "check that the brokers run" in part.text
    page = browser.get("/topics", headers={"HX-Request": "true", "HX-Target": 'x"><script>'})
    assert page.text.startswith("<!doctype html>")
    assert "script>" not in page.text.partition("<body")[2]


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    """As JSON under /api, as a page elsewhere."""
    web = stage(tmp_path)
    assert web.client().get("/api/v1/nothing").json()["status"] == 404
    page = web.client().get("/nothing").text
    assert "no such page" in page
    assert '<nav aria-label="Pages">' in page  # a way on, which tells nothing of the installation
    assert web.client(READ_TOKEN).delete("/api/v1/overview").status_code == 405
    assert web.client().get("/static/../app.py").status_code == 404


def test_a_server_answers_that_it_lives(tmp_path: Path) -> None:
    """A liveness probe has no token."""
    assert stage(tmp_path).client().get("/livez").text == "live\n"


def test_htmx_is_the_file_that_its_makers_publish() -> None:
    """htmx.org 2.0.11, dist/htmx.min.js, unchanged; its licence lies beside it."""
    file = (STATIC / "htmx.min.js").read_bytes()
    assert sha256(file).hexdigest() == (
        "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
    )
    assert "Zero-Clause BSD" in (STATIC / "htmx.LICENSE").read_text("utf-8")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the command that installs what is missing, in place of a traceback."""
    monkeypatch.setattr("halfbridge.cli.options.find_spec", lambda name: None)
    result = CliRunner().invoke(cli, ["web"])
    assert result.exit_code == 1
    assert "pip install 'halfbridge[web]'" in result.stderr


def test_an_origin_that_is_no_address_is_refused(tmp_path: Path) -> None:
    """As any other that is not the server's own: not by an error of the server."""
    answer = (
        stage(tmp_path)
        .client()
        .post("/sign-in", data={"token": READ_TOKEN}, headers={"Origin": "http://["})
    )
    assert answer.status_code == 403
