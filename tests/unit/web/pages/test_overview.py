"""The overview page, in memory."""

from __future__ import annotations

from halfbridge.checker.admin.doctor.facts import Finding, finding
from halfbridge.web.pages.overview import FINDINGS_MAX, PAGES
from halfbridge.web.pages.page import TEMPLATES
from halfbridge.web.watch import Reading, overview_of


def _live(*found: Finding, **more: object) -> str:
    """Return the part of the page that is read again and again."""
    template = TEMPLATES.get_template(PAGES[0].template)
    given = {"has_daemons": True, "health": (), "overview": None, "lags": {}, **more}
    given |= {"findings": found, "findings_max": FINDINGS_MAX}
    return "".join(template.blocks["main"](template.new_context(given)))


def test_findings_of_doctor_are_told() -> None:
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
