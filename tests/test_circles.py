"""No module of the product imports itself, by whatever way round."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.test_tidy import LINKED, PACKAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A part that names its whole in an annotation, and nothing more. Only ever removed from.
PARTS = {
    ("halfbridge.sql.fence", "halfbridge.sql.fence_block"),
    ("halfbridge.testkit.memory.crash", "halfbridge.testkit.memory.databases"),
    ("halfbridge.testkit.memory.scheduler", "halfbridge.testkit.memory.task"),
}


def _modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if not {*LINKED} & {*parts[1:2]}:
                whole = parts if parts[0] == "halfbridge" else ("halfbridge", *parts)
                found[".".join(whole).removesuffix(".__init__")] = path
    return found


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield what is imported anywhere in a module: late, and for annotations, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield from (f"{node.module}.{alias.name}", node.module)


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen, todo = set[str](), [*graph[start]]
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += graph[module]
    return seen


def test_no_module_imports_itself() -> None:
    """Late imports and those of annotations count: a circle is one idea in two files."""
    modules = _modules()
    # A package is named with each of its modules, and imports many of them: it is left out.
    plain = {name for name, path in modules.items() if path.name != "__init__.py"}
    graph = {
        name: plain.intersection(_imported(ast.parse(path.read_text("utf-8")))) - {name}
        for name, path in modules.items()
    }
    for whole, part in PARTS:
        graph[part].remove(whole)
    assert [name for name in graph if name in _reachable(name, graph)] == []
