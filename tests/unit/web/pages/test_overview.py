"""The overview page, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.admin.doctor.codes import finding
from halfbridge.web.pages.overview import FINDINGS_MAX, PAGES
from halfbridge.web.pages.page import TEMPLATES

if TYPE_CHECKING:
    from halfbridge.checker.admin.doctor.codes import Finding


def _live(*found: Finding) -> str:
    """Return the part of the page that says what doctor found."""
    template = TEMPLATES.get_template(PAGES[0].template)
    given = {"has_daemons": True, "health": (), "overview": None, "lags": {}}
    given |= {"findings": found, "findings_max": FINDINGS_MAX}
    return "".join(template.blocks["main"](template.new_context(given)))


def test_findings_of_doctor_are_told() -> None:
    """Warnings and errors, the first few; a note is left to the page of doctor."""
    some = [finding("no-responder", f"nobody answers {n}", "start") for n in range(7)]
    page = _live(finding("idle-workers", "too many", "fewer"), *some)
    assert "7 to look at" in page
    assert page.count("nobody answers") == FINDINGS_MAX
    assert "too many" not in page
    assert "all well" in _live()
