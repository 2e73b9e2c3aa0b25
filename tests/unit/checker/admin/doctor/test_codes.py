"""The table of findings in docs/operations.md."""

from __future__ import annotations

import re
from pathlib import Path

from halfbridge.checker.admin.doctor.facts import MEANINGS

DOCUMENT = Path(__file__).parents[5] / "docs" / "operations.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| (error|warning|note) \| (.+?) \| (.+) \|$", re.MULTILINE)


def test_the_table_names_every_finding_as_the_code_does() -> None:
    """Code, severity and meaning are the same, in the same order; each row has a command."""
    rows = ROW.findall(DOCUMENT.read_text("utf-8"))
    told = [(code, severity, meaning) for code, severity, meaning, _ in rows]
    assert told == [
        (code, severity.value, meaning) for code, (severity, meaning) in MEANINGS.items()
    ]

    assert [code for code, *_, mend in rows if "`" not in mend] == []
