"""The lines of a lock file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from halfbridge.testkit.lock_jars import lock_lines


def test_lines_are_read_off_ivys_cache(tmp_path: Path) -> None:
    """A bundle is a jar too; a version may have dashes."""
    jars = []
    for place in ("org.a/lib/jars/lib-1.0.jar", "b/x-y_2.13/bundles/x-y_2.13-3.0-rc1.jar"):
        jar = tmp_path / "ivy" / place
        jar.parent.mkdir(parents=True)
        jar.write_bytes(place.encode())
        jars.append(jar)
    sums = [hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars]
    assert lock_lines(jars) == [
        f"{sums[0]} 26 org.a:lib:1.0",
        f"{sums[1]} 39 b:x-y_2.13:3.0-rc1",
    ]
