"""Keys, values and headers of records, as text."""

from __future__ import annotations

from halfbridge.cli.bytes_text import bytes_text


def test_bytes_are_one_line_of_text() -> None:
    """UTF-8 as it is; other bytes and control characters escaped; nothing is not empty."""
    assert bytes_text("grün".encode()) == "grün"
    assert bytes_text(b"\xff\n") == "\\xff\\n"
    assert bytes_text(b"") == ""
    assert bytes_text(None) == "null"
