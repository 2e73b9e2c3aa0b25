"""The example that docs/security.md shows, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1].joinpath("docs", "security.md").read_text("utf-8")


def test_the_example_passes_as_it_stands(tmp_path: Path) -> None:
    """A service that seals its values, and its tests, in a project of its own."""
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in files] == ["sealing.py", "test_sealing.py"]
    for name, text in files:
        (tmp_path / name).write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-W", "error", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
