"""A place in the code that a docstring or comment names is there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.test_tidy import PACKAGES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

# `checker.loop.stamps`, `halfbridge.bench.run.run_bench`; not `job.json`, not `linger.ms`.
_PLACE = re.compile(rf"`(?:halfbridge\.)?((?:{'|'.join(PACKAGES)})(?:\.\w+)+)`")


def test_places_that_are_named_exist() -> None:
    """Each module, and each class, function or constant in it."""
    wrong = []
    seen = 0
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for place in _PLACE.findall(path.read_text("utf-8")):
                seen += 1
                if not _exists(place):
                    wrong.append(f"{path.relative_to(ROOT)}: {place}")
    assert wrong == []
    assert seen > 5  # there are some now; none means that the pattern fits no more


def test_a_module_that_moved_is_noticed() -> None:
    """The names of modules that are now in other rooms."""
    assert _exists("checker.loop.stamps")
    assert not _exists("checker.stamps")
    assert _exists("serde.protocol.covers_what_is_there")
    assert not _exists("serde.protocol.covers")


def _exists(place: str) -> bool:
    path, names = ROOT, place.split(".")
    if names[0] == "halfbridge" and names[1] in PACKAGES:
        names = names[1:]
    while names and (path / names[0]).is_dir():
        path, names = path / names[0], names[1:]
    if not names:
        return True
    if (path / f"{names[0]}.py").exists():
        path, names = path / f"{names[0]}.py", names[1:]
    else:
        path /= "__init__.py"
    return not names or _defines(path, names[0])


def _defines(path: Path, name: str) -> bool:
    pattern = rf"^(?:class|def|async def) {name}\b|^{name}\b.*=|import .*\b{name}\b|^ +{name},$"
    return path.exists() and bool(re.search(pattern, path.read_text("utf-8"), re.MULTILINE))
