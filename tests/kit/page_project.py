"""A project that a page of the documents shows, with tests of its own."""

import re
import subprocess
import sys
from pathlib import Path


def run_project(page: str, names: list[str], directory: Path) -> str:
    """Return what pytest prints about the project, whose files are exactly `names`; see it pass."""
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in files] == names
    for name, text in files:
        (directory / name).write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-W", "error", "-p", "no:cacheprovider"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
