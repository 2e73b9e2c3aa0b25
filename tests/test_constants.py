"""A number that has a name has a reason, too: a derivation, or a precedent."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.test_tidy import LINKED, PACKAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

# What needs none: a unit, an exit status, a value that means "nothing" or "any", a version, and
# the numbers of a format or of Kafka's protocol, which its name tells.
_PLAIN = re.compile(
    r"_?(?:(?:MS|NS|KIB|SECONDS)_(?:PER|A|AN)_\w+|(?:SECOND|MINUTE|HOUR|DAY)_(?:MS|S)|[KMG]IB|PERCENT"
    r"|EXIT_\w+|NO_\w+|ANY_\w+|ABSENT|PARTITION_BY_KEY|DEFAULT_IMMUNITY|COUNT_UNKNOWN"
    r"|(?:PLAN_)?VERSION|(?:UUID_V7|COMMIT|CREATE_TIME|LOG_APPEND_TIME|KEY_BYTES|FIELDS)"
    r"|NODE_ID)"
)
_ASSIGNED = re.compile(r"_?[A-Z][A-Z0-9_]*(?:: \w+)? = ")


def test_numbers_have_reasons() -> None:
    """On the number's line, or above the lines of numbers that it belongs to."""
    without = [
        f"{path}:{line}: {name}"
        for package in PACKAGES
        for path, text in _sources(package)
        for name, line in _without_reason(text)
    ]
    assert without == []


def test_a_number_without_a_reason_is_noticed() -> None:
    """A comment above reaches all lines below it, up to an empty one."""
    text = "# Why.\nA_MAX = 1\nB_MAX = 2\n\nC_MAX = 3\nD_S = 4  # why\n_HOUR_MS = 5\nNO_E = -1\n"
    assert [name for name, _ in _without_reason(text)] == ["C_MAX"]


def _sources(package: str) -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT)
        if package in LINKED or name.parts[1] not in LINKED:
            yield str(name), path.read_text("utf-8")


def _without_reason(text: str) -> Iterator[tuple[str, int]]:
    lines = text.split("\n")
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if (
            not isinstance(target, ast.Name)
            or not target.id.isupper()
            or not _is_number(node.value)
        ):
            continue
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if not (_PLAIN.fullmatch(target.id) or "#" in lines[last] or _is_said_above(lines, first)):
            yield target.id, node.lineno


def _is_said_above(lines: list[str], at: int) -> bool:
    while at > 0 and _ASSIGNED.match(lines[at - 1]):
        at -= 1
    return at > 0 and lines[at - 1].lstrip().startswith("#")


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
