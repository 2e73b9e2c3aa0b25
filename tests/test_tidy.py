"""The repository's own rules, read off its sources."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = "halfbridge"

FUNCTION_LINES_MAX = 70  # without its docstring: what fits on one screen
SINK = "halfbridge/spark_jobs/sink"
# What waits, or looks at a clock; client and sink are given ports for it.
PORTS_ONLY = {"_thread", "threading", "queue", "time"}
NO_WAIT = {"threading.Lock", "queue.Empty", "queue.Full"}
# Packages in which everything has a type; in the others, what no library gives types is `Any`.
TYPED = ("spark", "spark_jobs", "checker/admin/dead", "checker/admin/doctor", "checker/process")
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


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_tree(path)))


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in _nodes(path):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or 0) - function.lineno + 1
    if not ast.get_docstring(function):
        return lines
    return lines - (function.body[0].end_lineno or 0) + function.body[0].lineno - 1


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


def test_typed_packages_use_no_any() -> None:
    """With `Any`, mypy checks nothing of what depends on the value."""
    found = [
        f"{_name(path)}:{node.lineno}"
        for path in _files(*(f"{PRODUCT}/{each}" for each in TYPED))
        for node in _nodes(path)
        if (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
    ]
    assert found == []


def test_functions_fit_on_a_screen() -> None:
    """No function is longer than the hard cap, in sources or tests."""
    long = [
        f"{_name(path)}: {function.name}"
        for path in _files(PRODUCT, "tests")
        for function in _functions(path)
        if _lines(function) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_client_and_sink_wait_by_ports() -> None:
    """Threads, queues and clocks come in from outside; a Lock is for what does not wait."""
    wrong = [
        f"{_name(path)}: {name}"
        for path in _files("halfbridge/bridge", SINK)
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
        for path in _files(PRODUCT)
        for found in lookup.finditer(path.read_text("utf-8"))
    ]
    assert wrong == []


def test_the_environment_is_read_in_one_module() -> None:
    """Its importers are entry points, which a contract of import-linter names."""
    reading = re.compile(r"\bos\.(?:environb?|getenvb?)\b|^from os import", re.MULTILINE)
    readers = [_name(path) for path in _files(PRODUCT) if reading.search(path.read_text("utf-8"))]
    assert readers == ["halfbridge/environment.py"]


def test_wire_records_are_made_with_names() -> None:
    """Nobody counts eleven places: HalfMetadata and Op are made with names, or by new_half."""
    counted = [
        f"{_name(path)}:{node.lineno}"
        for path in _files(PRODUCT, "tests")
        for node in _nodes(path)
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
    for path in (*_files("halfbridge/checker/core"), *(ROOT / PRODUCT / name for name in pure)):
        tree = _tree(path)
        for name in sorted(_imported(tree)):
            ours = name in (
                "halfbridge.serde.records",
                "halfbridge.serde.limits",
                "halfbridge.serde.progress",
                "halfbridge.serde.protocol",
            ) or name.startswith("halfbridge.checker.core")
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
    bare = re.compile(
        r"# (?:(?:ruff: )?noqa: [A-Z0-9, ]+|type: ignore\[(?!import-untyped)[\w, -]+\])\s*$"
    )
    silent = []
    for path in _files(PRODUCT, "tests", "benchmarks", "docs", "examples"):
        above = ""
        for line in path.read_text("utf-8").splitlines():
            if bare.search(line) and not above.startswith("#"):
                silent.append(f"{_name(path)}: {line}")
            if not line.strip().startswith("from "):  # a comment is about all imports below it
                above = line.strip()
    assert silent == []


# Where `asyncio.sleep` lets the time of the stack in memory pass, which takes none.
VIRTUAL_TIME = (
    "tests/unit/testkit/memory/test_async_stack.py",
    "tests/unit/testkit/memory/test_no_room.py",
    "tests/unit/bridge/test_tracing.py",
)


def _has_comment(lines: list[str], number: int) -> bool:
    """Tell whether line `number` (from 1) has a comment behind it, or directly above it."""
    return "  # " in lines[number - 1] or lines[number - 2].lstrip().startswith("#")


def _says_why(call: ast.Call, path: Path) -> bool:
    """Tell whether a sleep yields, polls, or has a reason: at the call, or at its constant."""
    (length,) = call.args
    if isinstance(length, ast.Constant) and length.value == 0:
        return True
    names = {each.id for each in ast.walk(length) if isinstance(each, ast.Name)}
    if any("POLL" in name for name in names):
        return True
    lines = path.read_text("utf-8").splitlines()
    constants = [
        target.lineno
        for node in _tree(path).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in names
    ]
    return any(_has_comment(lines, number) for number in (call.lineno, *constants))


def test_a_sleep_says_why() -> None:
    """Tests wait for what they need; where the time itself matters, a comment says what it is."""
    silent = [
        f"{_name(path)}:{node.lineno}"
        for path in _files("tests")
        for node in _nodes(path)
        if _name(path) not in VIRTUAL_TIME
        and isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("sleep")
        and not _says_why(node, path)
    ]
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
        for function in _functions(path)
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ]
    assert silent == []


# Who acts on an error: a role, or what the reader of the docstring does.
WHO_ACTS = re.compile(
    r"\b(?:acts?|author|bug|call(?:er|ing)?|check|client|daemon|nobody|operator|owner|programmer"
    r"|query|reader|relay|supervisor|task|test|user|whoever|worker|writer"
    r"|again|begin|change|correct|give|make|name|repeat|restart|roll|run|shorten|try|upgrade"
    r"|do not|as above)(?:s|'s)?\b|\bas (?:of )?`",
    re.IGNORECASE,
)
ERROR_ENTRY = re.compile(r"\b\w+Error(?:, \w+Error)*(?: \([^)]*\))?: ")
RAISES_AS = re.compile(r"\b(?:as|errors of|what) `")


def _documented(
    node: ast.AST, of_class: str = ""
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Yield what is not private and has a docstring; a constructor has that of its class."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef) and not each.name.startswith("_"):
            yield from _documented(each, ast.get_docstring(each) or "")
        elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = of_class if each.name == "__init__" else ast.get_docstring(each)
            if text and (each.name == "__init__" or not each.name.startswith("_")):
                yield each, text


def _own_raises(node: ast.AST) -> Iterator[ast.Raise]:
    """Yield what a function itself raises: not in a function inside, nor where it catches."""
    for each in ast.iter_child_nodes(node):
        is_tried = isinstance(node, ast.Try) and node.handlers and each in node.body
        if isinstance(each, ast.Raise):
            if not is_tried:
                yield each
        elif not is_tried and not isinstance(
            each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        ):
            yield from _own_raises(each)


def _raised(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    made = (
        each.exc.func if isinstance(each.exc, ast.Call) else each.exc
        for each in _own_raises(function)
    )
    names = {each.id for each in made if isinstance(each, ast.Name) and each.id[0].isupper()}
    return {name for name in names if name.endswith("Error")} - {"AssertionError"}


def test_docstrings_name_the_errors_and_who_acts() -> None:
    """What a function itself raises is in its docstring; each error there says who acts."""
    silent = []
    for path in _files(PRODUCT):
        for function, text in _documented(_tree(path)):
            is_command = any("command" in ast.unparse(each) for each in function.decorator_list)
            if not is_command and not RAISES_AS.search(text):  # a command's is its --help
                unnamed = (each for each in _raised(function) if each not in text)
                silent += [f"{_name(path)}:{function.lineno}: {each}" for each in unnamed]
            for paragraph in text.split("\n\n"):
                _, *entries = ERROR_ENTRY.split(paragraph)
                silent += [
                    f"{_name(path)}:{function.lineno}: {each}"
                    for each in entries
                    if not WHO_ACTS.search(each)
                ]
    assert silent == []


def test_texts_for_users_name_no_rules() -> None:
    """Rules and steps have numbers in DESIGN.md only: no output, log line or error names one."""
    numbered = re.compile(r"\b([Rr]ule \d|ADR \d|[CRS]\d[),])")
    found = []
    for path in _files(PRODUCT):
        bare = {id(each.value) for each in _nodes(path) if isinstance(each, ast.Expr)}
        found += [
            f"{_name(path)}:{each.lineno}: {each.value}"
            for each in _nodes(path)
            if isinstance(each, ast.Constant)
            and isinstance(each.value, str)
            and id(each) not in bare  # docstrings
            and numbered.search(each.value)
        ]
    assert found == []


def test_no_loose_ends() -> None:
    """No notes to self, no paths of somebody's machine, no addresses of package registries."""
    folders = [ROOT / name for name in (PRODUCT, "tests", "docs", "deploy", ".github")]
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
        for text in (path.read_text("utf-8", errors="replace"),)
        for word in BANNED
        if word in text
    ]
    assert found == []
