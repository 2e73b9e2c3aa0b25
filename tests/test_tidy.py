"""The repository's own rules, read off its sources."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
# Imported as halfbridge.serde and so on (ADR 14).
LINKED = ("serde", "bridge", "checker", "spark_jobs")
PACKAGES = (*LINKED, "halfbridge")

FUNCTION_LINES_MAX = 70  # body without its docstring: what fits on one screen
MODULE_LINES_MAX = 700  # a module is one idea; above this it usually holds two

MAY_IMPORT = {
    "serde": {"serde"},
    "bridge": {"serde", "bridge"},
    "checker": {"serde", "bridge", "checker"},
    "spark_jobs": {"serde", "spark_jobs"},
    "halfbridge": set(PACKAGES),
}
# What the sink may import of the client's package, on executors too (ADR 15): the ports, what is
# behind them, and what asks nothing but ports. None of it knows a producer or its settings.
SHARED = (
    "halfbridge.bridge.acknowledgements",
    "halfbridge.bridge.ends",
    "halfbridge.bridge.errors",
    "halfbridge.bridge.failure",
    "halfbridge.bridge.held",
    "halfbridge.bridge.kafka",
    "halfbridge.bridge.ports",
    "halfbridge.bridge.settings_topic",
    "halfbridge.bridge.signatures",
    "halfbridge.bridge.topics",
    "halfbridge.bridge.trouble",
)
SINK = "spark_jobs/sink/"
# Where confluent_kafka is imported: the adapter, and the bench's baseline.
KAFKA_CLIENT = ("bridge/kafka/", "halfbridge/bench/plain_clients.py")
# What waits, or looks at a clock; client and sink are given ports for it.
PORTS_ONLY = {"_thread", "threading", "queue", "time"}
NO_WAIT = {"threading.Lock", "queue.Empty", "queue.Full"}
# What cannot read a clock, a file, a socket, the environment or a random number.
PURE_IMPORTS = {
    "__future__",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "typing",
    "zlib",
}
# The daemon's rooms, and what each may import of the others; files beside the rooms serve all.
ROOMS = {
    "core": {"core"},
    "admin": {"admin", "core"},
    "loop": {"loop", "admin", "core"},
    "process": {"process", "loop", "admin", "core"},
}
# What the daemon is given by its ports; `process` has processes, signals, files and HTTP itself.
GIVEN = {"time", "threading", "queue", "confluent_kafka", "halfbridge.bridge.threads"}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}

# Joined here, so that this file does not hold them itself.
BANNED = tuple(
    "".join(parts)
    for parts in (
        ("TO", "DO"),
        ("FIX", "ME"),
        ("X", "XX "),
        ("/wo", "rk/"),
        ("/ro", "ot/"),
        ("/fa", "rm/"),
        ("/ho", "me/"),
        ("pypi.", "org"),
        ("python", "hosted.org"),
        ("maven.", "org"),
        ("repo.maven.", "apache.org"),
        ("registry.", "npmjs"),
        ("proxy.", "golang.org"),
    )
)
TEXT_SUFFIXES = {
    ".avsc",
    ".cfg",
    ".ini",
    ".md",
    ".properties",
    ".py",
    ".sh",
    ".toml",
    ".txt",
    ".xml",
    ".yaml",
    ".yml",
}


def _files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "__pycache__" not in path.parts:
                yield path


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names.add(node.module or "")
    return names


def _names_taken(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Yield what is imported of some modules, such as `queue.Full`, or a module itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _package(module: str) -> str:
    """Return the directory of ours that a module is in; of another's module its first name."""
    first, _, rest = module.partition(".")
    inner = rest.partition(".")[0]
    return inner if first == "halfbridge" and inner in LINKED else first


def test_functions_fit_on_a_screen() -> None:
    """No function body is longer than the hard cap, in sources or tests."""
    long = [
        f"{_name(path)}: {function.name}"
        for path in _files(*PACKAGES, "tests")
        for function in _functions(_tree(path))
        if _body_lines(function) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_modules_hold_one_idea() -> None:
    """No module of the product is longer than the cap."""
    lengths = {_name(path): len(path.read_text("utf-8").splitlines()) for path in _files(*PACKAGES)}
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES_MAX} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    """The wire format knows nothing of the client, the client nothing of the daemon."""
    wrong = [
        f"{_name(path)} imports {name}"
        for path in _files(package)
        for name in sorted(_imported(_tree(path)))
        if (room := _package(name)) in PACKAGES and room not in MAY_IMPORT[package]
        if not (_name(path).startswith(SINK) and name.startswith(SHARED))
    ]
    assert wrong == []


def test_nothing_is_imported_by_a_name_that_others_may_have() -> None:
    """Also text that is run as a program says `halfbridge.serde`, and never `serde` alone."""
    begin, names = r"(?:^|[\"';])[ ]*", "|".join(LINKED)
    bare = re.compile(rf"{begin}(?:from (?:{names})[. ]|import (?:{names})\b)", re.MULTILINE)
    wrong = [
        f"{_name(path)}: {found.group()}"
        for path in _files(*PACKAGES, "tests")
        for found in bare.finditer(path.read_text("utf-8"))
    ]
    assert wrong == []


@pytest.mark.parametrize("package", LINKED)
def test_the_package_holds_a_link(package: str) -> None:
    """The directories stand at the top; what is imported and installed is the link to each."""
    link = ROOT / "halfbridge" / package
    assert link.is_symlink()
    assert link.readlink() == Path("..") / package


def test_the_kafka_client_has_few_doors() -> None:
    """confluent_kafka is imported in bridge/kafka, and in one file of the bench."""
    wrong = [
        _name(path)
        for path in _files(*PACKAGES)
        if any(name.partition(".")[0] == "confluent_kafka" for name in _imported(_tree(path)))
        and not _name(path).startswith(KAFKA_CLIENT)
    ]
    assert wrong == []


def test_client_and_sink_wait_by_ports() -> None:
    """Threads, queues and clocks come in from outside; a Lock is for what does not wait."""
    wrong = [
        f"{_name(path)}: {name}"
        for path in _files("bridge", SINK)
        if not _name(path).startswith(("bridge/kafka/", "bridge/threads.py"))
        for name in _names_taken(_tree(path), PORTS_ONLY)
        if name not in NO_WAIT
    ]
    assert wrong == []


def test_settings_are_read_by_the_loader() -> None:
    """No module looks up a variable of ours in the environment by itself."""
    names = r"\w+_VARIABLE|variable\(|f?[\"']HALFBRIDGE_"
    lookup = re.compile(rf"environ(?:ment)?(?:\.get\(|\[)\s*(?:{names})")
    wrong = [
        f"{_name(path)}: {found.group()}"
        for path in _files(*PACKAGES)
        for found in lookup.finditer(path.read_text("utf-8"))
    ]
    assert wrong == []


def test_the_daemon_is_given_its_clock_and_threads() -> None:
    """So that its loop runs in a simulator as it is shipped; only its processes have their own."""
    wrong = [
        f"{_name(path)} imports {name}"
        for path in _files("checker")
        if _name(path).split("/")[1] != "process"
        for name in sorted(_imported(_tree(path)) & GIVEN)
        if (name, _name(path)) != ("threading", "checker/status.py")  # a Lock: HTTP threads read
    ]
    assert wrong == []


def test_the_daemon_has_rooms_in_one_direction() -> None:
    """The loop knows nothing of processes, and the ledger nothing of the loop."""
    wrong = [
        f"{_name(path)} imports {name}"
        for path in _files("checker")
        for name in sorted(_imported(_tree(path)))
        for room in [name.removeprefix("halfbridge.checker.").partition(".")[0]]
        if name.startswith("halfbridge.checker.") and room in ROOMS
        if room not in ROOMS.get(_name(path).split("/")[1], set())
    ]
    assert wrong == []


def test_wire_records_are_made_with_names() -> None:
    """Nobody counts eleven places: HalfMetadata and Op are made with names, or by new_half."""
    counted = [
        f"{_name(path)}:{node.lineno}"
        for path in _files(*PACKAGES, "tests")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("HalfMetadata", "Op")
        and any(not isinstance(each, ast.Starred) for each in node.args)
    ]
    assert counted == []


def test_the_core_is_pure() -> None:
    """The ledger and the client's table import nothing that could look at the outside world."""
    wrong = []
    pure = ("bridge/transaction.py", "serde/protocol.py", "serde/progress.py")
    for path in (*_files("checker/core"), *(ROOT / name for name in pure)):
        tree = _tree(path)
        for name in sorted(_imported(tree)):
            ours = name in (
                "halfbridge.serde.records",
                "halfbridge.serde.limits",
                "halfbridge.serde.progress",
                "halfbridge.serde.protocol",
            ) or name.startswith(("halfbridge.checker.core", "halfbridge.bridge.errors"))
            if name.partition(".")[0] not in PURE_IMPORTS and not ours:
                wrong.append(f"{_name(path)} imports {name}")
        wrong += [
            f"{_name(path)}:{node.lineno} calls {node.func.id}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in IMPURE_CALLS
        ]
    assert wrong == []


def test_every_exception_to_a_rule_has_its_reason() -> None:
    """Behind `noqa` and `type: ignore`, or in a comment above; packages without types need none."""
    bare = re.compile(r"# (?:noqa: [A-Z0-9, ]+|type: ignore\[(?!import-untyped)[\w-]+\])\s*$")
    silent = []
    for path in _files(*PACKAGES):
        above = ""
        for line in path.read_text("utf-8").splitlines():
            if bare.search(line) and not above.startswith("#"):
                silent.append(f"{_name(path)}: {line}")
            if not line.strip().startswith("from "):  # a comment is about all imports below it
                above = line.strip()
    assert silent == []


def test_one_oracle_is_independent() -> None:
    """The model of the property tests says the rules itself: it takes records and limits only."""
    imported = _imported(_tree(ROOT / "tests" / "property" / "model.py"))
    ours = {name for name in imported if name.startswith("halfbridge.")}
    assert ours == {
        "halfbridge.checker.core.events",
        "halfbridge.serde.limits",
        "halfbridge.serde.records",
    }


def test_every_test_says_what_it_shows() -> None:
    """Each test has a docstring that states the behaviour."""
    silent = [
        f"{_name(path)}: {function.name}"
        for path in _files("tests")
        if path.name.startswith("test_")
        for function in _functions(_tree(path))
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ]
    assert silent == []


def test_texts_for_users_name_no_rules() -> None:
    """Rules and steps have numbers in DESIGN.md only: no output, log line or error names one."""
    numbered = re.compile(r"\b([Rr]ule \d|ADR \d|[CRS]\d[),])")
    found = []
    for path in _files(*PACKAGES):
        tree = _tree(path)
        bare = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        found += [
            f"{_name(path)}:{each.lineno}: {each.value}"
            for each in ast.walk(tree)
            if isinstance(each, ast.Constant)
            and isinstance(each.value, str)
            and id(each) not in bare  # docstrings
            and numbered.search(each.value)
        ]
    assert found == []


def test_no_loose_ends() -> None:
    """No notes to self, no paths of somebody's machine, no addresses of package registries."""
    folders = [ROOT / name for name in (*PACKAGES, "tests", "docs", "deploy", ".github")]
    paths = [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    paths += [path for path in ROOT.iterdir() if path.is_file()]
    found = [
        f"{_name(path)}: {word}"
        for path in sorted(paths)
        if path.suffix in TEXT_SUFFIXES or path.name == "Makefile"
        for word in BANNED
        if word in path.read_text("utf-8", errors="replace")
    ]
    assert found == []
