"""The words that docs/glossary.md bans stand nowhere but where it says why they may."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
PACKAGES = ("serde", "bridge", "checker", "spark_jobs", "halfbridge")
LINKED = ("serde", "bridge", "checker", "spark_jobs")  # in halfbridge/, by links
_LOGGERS = {"_LOG", "_log", "LOG", "_CLIENT_LOG"}
_LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


class Named(NamedTuple):
    """Something that has a name: `path:name` is what the glossary's exceptions match."""

    path: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


class Exempt(NamedTuple):
    """A line of the glossary's table of exceptions."""

    word: str
    patterns: tuple[str, ...]
    reason: str


def _tables() -> tuple[list[tuple[str, ...]], list[Exempt]]:
    """Return the rows of the glossary's two tables."""
    terms, _, rest = GLOSSARY.read_text("utf-8").partition("\n## ")
    rows = [
        [
            [cell.strip() for cell in line.strip("|").split(" | ")]
            for line in text.splitlines()
            if line.startswith("| ")
        ][1:]
        for text in (terms, rest)
    ]
    said = [(row + [""] * 3)[:3] for row in rows[0]]
    exceptions = [
        Exempt(word, tuple(re.findall(r"`([^`]+)`", where)), why) for word, where, why in rows[1]
    ]
    return [tuple(each) for each in said], exceptions


def _plain(cell: str) -> list[str]:
    """Return the terms of a cell: parted by commas, without what stands in brackets."""
    bare = re.sub(r"\([^)]*\)", "", cell)
    return [term.strip(" |`").lower() for term in bare.split(",") if term.strip(" |`")]


def banned() -> set[str]:
    """Return the words that mean nothing here; what has a row of its own means that."""
    terms, _ = _tables()
    said = {word for say, _, _ in terms for word in _plain(say)}
    words = {word for _, _, cell in terms for word in _plain(cell)}
    return {word for word in words if word not in said}


def _sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            if "__pycache__" not in parts and not (parts[0] == "halfbridge" and parts[1] in LINKED):
                yield path


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module gives; those that it only uses are others'."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _said(tree: ast.Module) -> Iterator[str]:
    """Yield the options of commands, and what is logged."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call = node.func
        is_log = (
            isinstance(call, ast.Attribute)
            and call.attr in _LEVELS
            and isinstance(call.value, ast.Name)
            and call.value.id in _LOGGERS
        )
        if is_log or (isinstance(call, ast.Name) and call.id == "tell"):
            yield from _texts(node)
        elif isinstance(call, ast.Attribute) and call.attr in ("option", "argument"):
            yield from (text for text in _texts(node) if re.fullmatch(r"--[a-z][a-z-]*", text))


@cache
def names() -> frozenset[Named]:
    """Return everything of ours that has a name: files, identifiers, options, lines of the log."""
    found = set()
    for path in _sources():
        where = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        found.add(Named(where, where.removesuffix(".py")))
        found.update(Named(where, name) for name in (*_defined(tree), *_said(tree)))
    return frozenset(found)


@cache
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name: of `MAX_age`, `maxAge` and "max age" the same two."""
    return tuple(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name))


def holds(name: str, term: str) -> bool:
    """Tell whether a name holds a term or its plural, as whole words."""
    spoken = f" {' '.join(words_of(name))} "
    wanted = " ".join(words_of(term))
    return f" {wanted} " in spoken or f" {wanted}s " in spoken


def _allowed(named: Named, word: str, exceptions: list[Exempt]) -> bool:
    return any(
        fnmatchcase(str(named), pattern)
        for each in exceptions
        if each.word == word
        for pattern in each.patterns
    )


def test_banned_words_stand_nowhere_else() -> None:
    """Each name that holds a banned word is among the exceptions of the glossary."""
    _, exceptions = _tables()
    words = sorted(banned())
    wrong = [
        f"{word}: {named}"
        for named in sorted(names())
        for word in words
        if holds(named.name, word) and not _allowed(named, word, exceptions)
    ]
    assert wrong == []


def test_exceptions_are_needed_and_have_a_reason() -> None:
    """An exception is of a banned word, matches something, and says why."""
    _, exceptions = _tables()
    there = names()
    stale = [
        f"{each.word}: {pattern}"
        for each in exceptions
        for pattern in each.patterns
        if not any(holds(n.name, each.word) and fnmatchcase(str(n), pattern) for n in there)
    ]
    assert stale == []
    assert {each.word for each in exceptions} <= banned()
    assert all(each.reason and each.patterns for each in exceptions)


@pytest.mark.parametrize(
    ("name", "term", "is_held"),
    [
        ("is_stuck", "stuck", True),
        ("StuckPairs", "stuck", True),
        ("unstuck", "stuck", False),
        ("real_destinations", "destination", True),
        ("--clean-up", "clean up", True),
        ("cleaned up", "clean up", False),
        ("HTTPStatus", "status", True),
    ],
)
def test_words_are_found_in_any_spelling(name: str, term: str, *, is_held: bool) -> None:
    """In capitals, with underscores or hyphens, in the plural, and not as parts of others."""
    assert holds(name, term) is is_held
