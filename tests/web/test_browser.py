"""The web page in a real browser, on a real broker with a daemon: every page, and a change by keys.

With HALFBRIDGE_PICTURES=DIRECTORY the pages are also written there as PNGs, light and dark: so the
pictures of docs/incidents/index.md are made.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.kafka.adapter import system_ports
from halfbridge.serde.records import OpKind, OpSource
from halfbridge.testkit.ports import free_ports
from halfbridge.testkit.stack import DaemonProcess
from halfbridge.web.pages.table import NAVIGATION
from tests.integration.installation import GROUP, Installation
from tests.kit.chromium import LOADED, PHONE, WINDOW, Browser, browsing
from tests.kit.http import answer_of
from tests.kit.waiting import until
from tests.kit.web import OPERATE_TOKEN, token_file
from tests.tools import node_file, tool

pytestmark = pytest.mark.broker

PICTURES = os.environ.get("HALFBRIDGE_PICTURES", "")
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=document.title='taken'>"


# What is wider than the window, or than the card that it stands in; regions that scroll may be.
WIDER = """
[...document.querySelectorAll('html, main, .card, .tile, .health, table')]
  .filter(each => !each.closest('.scroll') && each.scrollWidth > each.clientWidth + 1)
  .map(each => `${each.tagName} ${each.className}: ${each.textContent.trim().slice(0, 40)}`)
"""
# Lists that a reader must scroll to see all columns.
CUT = """
[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => each.ariaLabel)
"""
# Cells of a list that is cards on a phone, and whose label is not what heads their column.
UNNAMED_CELLS = """
[...document.querySelectorAll('.scroll td:not([colspan])')]
  .filter(each => each.dataset.label !== each.closest('table').tHead.rows[0].cells[each.cellIndex]
    .textContent || getComputedStyle(each, '::before').content === 'none')
  .map(each => each.textContent)
"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = tool("chromium", package="chromium", others=("chromium-headless-shell",))
    with browsing(program, tmp_path) as made:
        yield made


@contextmanager
def served(installation: Installation, directory: Path) -> Iterator[str]:
    """Run a daemon with the server beside it; yield the server's address."""
    metrics, admin = free_ports(2)
    daemon = DaemonProcess(
        CheckerConfig(
            bootstrap_servers=installation.servers,
            topic_prefix=installation.names.prefix,
            transaction_timeout_ms=1000,
            check_interval_ms=1000,
            metrics_port=metrics,
            admin_port=admin,
            admin_tokens=token_file(directory),
            allow_changes=True,
            state_dir=directory,
        )
    )
    try:
        daemon.start()
        url = f"http://127.0.0.1:{admin}"
        until("the server answers", lambda: answer_of(f"{url}/livez")[0] == 200)
        yield url
    finally:
        daemon.stop()


def _fill(installation: Installation) -> tuple[str, str, str]:
    """Write transactions of all fates; return a delivered, an undecided and a dead one's id."""
    installation.make(partitions=2, groups=(GROUP, "payment-service"))
    orders = installation.topic("orders")
    delivered, undecided, dead = (system_ports().transaction_id() for _ in range(3))
    for _ in range(30):
        installation.pass_through(orders)
    installation.commit(installation.half(orders, delivered))
    installation.half(orders, undecided, headers=[(HOSTILE, b"")], value=HOSTILE.encode())
    installation.half(orders, producer_group="payment-service", partition=1)
    installation.half(
        installation.topic("payments_that_were_settled_by_customers.v2"),
        producer_group="inventory_reservation_service_for_warehouses",
    )
    given_up = installation.half(orders, dead)
    installation.op(
        OpKind.DISCARD,
        given_up,
        source=OpSource.OPERATOR,
        actor="ada@example",
        reason=HOSTILE,
        message_count=-1,
    )
    return delivered, undecided, dead


def _sign_in(browser: Browser, url: str) -> None:
    """Sign in by keys alone: the field has the focus."""
    browser.open(f"{url}/transactions")
    browser.wait("document.activeElement.id == 'token'")
    browser.write(OPERATE_TOKEN)
    browser.press("Enter")
    browser.wait(f"location.pathname == '/transactions' && {LOADED}")


def _open(browser: Browser, url: str, path: str) -> None:
    """Open a page, and wait until it is full."""
    browser.open(url + path)
    browser.wait(f"location.pathname + location.search == {json.dumps(path)}")
    browser.wait(f"{LOADED} && !document.querySelector('.reading')")
    if path == "/":  # with tiles and tables: after the first reading of the metrics
        browser.wait("document.querySelector('.tiles') !== null")


def _visit(browser: Browser, url: str, path: str, name: str = "") -> None:
    """Open a page, wait until it is full, and look at it."""
    _open(browser, url, path)
    assert browser.value("document.querySelectorAll('h1').length") == 1, path
    assert browser.value("document.querySelector('main').innerText.length") > 20, path
    assert browser.value("document.title.endsWith('halfbridge')"), "a stranger's script ran"
    unnamed = "[...document.querySelectorAll('input:not([type=hidden]),select,button')].filter("
    unnamed += "each => !(each.labels?.length || each.ariaLabel || each.textContent.trim())).length"
    assert browser.value(unnamed) == 0, f"{path}: a field without a label"
    assert browser.value(WIDER) == [], f"{path} is wider than the window"
    assert browser.value(CUT) == [], f"{path}: columns are out of sight"
    browser.resize(*PHONE)
    assert browser.value(WIDER) == [], f"{path} is wider than a phone"
    assert browser.value(UNNAMED_CELLS) == [], f"{path}: cells that do not name their column"
    browser.resize(*WINDOW)
    if PICTURES and name:
        _take(browser, name)


def _take(browser: Browser, name: str) -> None:
    """Write pictures of a page, without the empty rest of the window."""
    browser.fit()
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        browser.take_picture(Path(PICTURES) / f"{name}-{scheme}.png")
    browser.prefer("light")


def _commit_by_keys(browser: Browser, url: str, undecided: str) -> None:
    """Fill in the form of an undecided transaction and send it, with Tab, letters and Enter."""
    _visit(browser, url, f"/transactions/{undecided}")
    browser.tab_to("#commit-reason")
    browser.write("the row is there")
    browser.tab_to("#messages")
    browser.write("1")
    browser.press("Enter")
    browser.wait("document.querySelector('.notice')?.innerText.includes('first decision')")
    _visit(browser, url, "/audit-log", "audit-log")
    assert "the row is there" in browser.text()


def _copy_by_keys(browser: Browser, url: str, undecided: str) -> None:
    """Copy a whole id out of the list, which shows a part of it, and paste it."""
    _open(browser, url, "/transactions")
    assert undecided not in browser.text()
    # Headless, it neither asks for a permission nor has one.
    browser.call("Browser.grantPermissions", permissions=["clipboardSanitizedWrite"])
    browser.tab_to(f"[data-copy='{undecided}']")
    browser.press("Enter")
    browser.wait("document.activeElement.textContent == 'Copied'")
    browser.value("document.querySelector('#id').focus()")
    browser.paste()
    browser.wait(f"document.querySelector('#id').value == '{undecided}'")


@pytest.mark.feature
def test_every_page_and_a_change_by_keys(
    installation: Installation, tmp_path: Path, browser: Browser
) -> None:
    """Nobody needs a mouse, no page shows a stranger's markup, and nothing is complained about."""
    delivered, undecided, dead = _fill(installation)
    with served(installation, tmp_path) as url:
        _sign_in(browser, url)
        browser.press("Tab")
        skip = "document.activeElement.className"
        assert browser.value(skip) == "skip", "the first key leads to the content"
        for page in NAVIGATION:
            _visit(browser, url, page.path, page.title.lower().replace(" ", "-"))
        _visit(browser, url, "/transactions?key=key")
        assert "delivered to" in browser.text()
        _visit(browser, url, f"/transactions/{delivered}", "transaction")
        _visit(browser, url, f"/transactions/{dead}")
        _visit(browser, url, f"/transactions/{undecided}", "decide")
        _visit(browser, url, f"/dead-letters/{dead}")
        _visit(browser, url, f"/groups/{GROUP}")
        _copy_by_keys(browser, url, undecided)
        _commit_by_keys(browser, url, undecided)
        if PICTURES:  # of an overview with rates: after two readings
            browser.open(url)
            browser.wait("document.querySelector('.spark') !== null")
            _take(browser, "overview")
        assert browser.complaints == []
        # Last, as the browser complains of the status 404.
        unknown = delivered[:-1] + format(int(delivered[-1], 16) ^ 1, "x")
        browser.open(f"{url}/transactions/{unknown}")
        # The whole page is the error where Kafka answers at once, else its part becomes the error.
        browser.wait("document.body.innerText.includes('no record of this id was found')")
        assert "Reading from Kafka" not in browser.text()


def test_every_page_is_accessible_on_a_phone_and_a_laptop(
    installation: Installation, tmp_path: Path, browser: Browser
) -> None:
    """axe-core finds nothing: each region that scrolls is reached by keys, for example."""
    axe = node_file("axe-core", "axe.min.js")
    delivered, undecided, dead = _fill(installation)
    found = []
    with served(installation, tmp_path) as url:
        browser.open(f"{url}/transactions")
        browser.wait("document.activeElement.id == 'token'")
        found += browser.violations(axe)
        _sign_in(browser, url)
        paths = [page.path for page in NAVIGATION]
        paths += [f"/transactions/{each}" for each in (delivered, undecided, dead)]
        paths += [f"/dead-letters/{dead}", f"/groups/{GROUP}", "/transactions?key=key"]
        for path in paths:
            _open(browser, url, path)
            for size in (WINDOW, PHONE):
                browser.resize(*size)
                found += [f"{path} at {size}: {each}" for each in browser.violations(axe)]
    assert found == []
