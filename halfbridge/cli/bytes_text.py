"""Keys, values and headers of records, as text in one line."""

from __future__ import annotations

from halfbridge.bridge.log_text import one_line
from halfbridge.serde.headers import CHECK, DEAD, DEAD_MARK, HALF

# Headers of halfbridge's own: commands show what they say, not their bytes.
CARRIED = frozenset((HALF, CHECK, DEAD, DEAD_MARK))


def bytes_text(data: bytes | None) -> str:
    """Return bytes as UTF-8, escaped where they are none; `null` where there are none."""
    return "null" if data is None else one_line(data.decode("utf-8", "backslashreplace"))
