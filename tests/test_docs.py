"""The documents say what the code says. `python tests/test_docs.py` writes what is generated."""

import re
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import click
import pytest

from halfbridge.bridge.transaction import TRANSITIONS
from halfbridge.bridge.transaction import State as ClientState
from halfbridge.cli import LazyGroup
from halfbridge.serde.protocol import EFFECTS, STATE_AFTER, State
from halfbridge.serde.records import OpKind
from halfbridge.sql.local_messages import rows as row_states

ROOT = Path(__file__).parents[1]
STATE_MACHINE = ROOT / "docs" / "state_machine.md"
CASES = 140


def state_machine() -> str:
    """Return docs/state_machine.md as the code has it."""
    lines = [
        "# State machines",
        "",
        "Generated from `serde/protocol.py`, `bridge/transaction.py` and",
        "`halfbridge/sql/local_messages/rows.py` by `python tests/test_docs.py`; a test fails",
        "while this file is stale.",
        "",
        "## What an op does (daemon)",
        "",
        "A CHECKER's DISCARD that contradicts is ignored rather than a conflict; a DISCARD from",
        "anybody but CHECKER and OPERATOR is invalid in every state.",
        "",
        f"| State | {' | '.join(kind.value for kind in OpKind)} |",
        "|---" * (len(OpKind) + 1) + "|",
    ]
    for state in State:
        effects = (EFFECTS[state, kind] for kind in OpKind)
        cells = (
            f"{effect.value} → **{STATE_AFTER[effect].value}**"
            if effect in STATE_AFTER
            else effect.value
            for effect in effects
        )
        lines.append(f"| {state.value} | {' | '.join(cells)} |")
    lines += ["", "```mermaid", "stateDiagram-v2", "    [*] --> undecided"]
    for (state, kind), effect in EFFECTS.items():
        if effect in STATE_AFTER:
            after = STATE_AFTER[effect].value.replace(" ", "_")
            lines.append(f"    {state.value} --> {after}: {kind.value}")
    lines += [
        "```",
        "",
        "## The life of a transaction (client)",
        "",
        "What is not listed is illegal, raises `IllegalTransitionError` and changes nothing.",
        "",
        "| State | Event: leads to |",
        "|---|---|",
    ]
    for before in ClientState:
        edges = (f"{event.value}: {then.value}" for event, then in TRANSITIONS[before].items())
        lines.append(f"| {before.value} | {'; '.join(edges)} |")
    lines += [
        "",
        "## The life of a row (local message table)",
        "",
        "`pre_send` makes a row UNKNOWN, `add` LOCAL_COMMIT, `prepare` PREPARED. What is not",
        "listed changes nothing: the UPDATE finds no row.",
        "",
        "| State | Event: leads to |",
        "|---|---|",
    ]
    for row_state, events in row_states.TRANSITIONS.items():
        edges = (f"{event.value}: {after.value}" for event, after in events.items())
        lines.append(f"| {row_state.value} | {'; '.join(edges) or 'final'} |")
    return "\n".join(lines) + "\n"


def all_tests(folder: str = "") -> set[str]:
    """Return the names of all test functions below tests/`folder`."""
    return {
        name
        for path in (ROOT / "tests" / folder).rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }


def documents() -> list[Path]:
    """Return every document of the repository."""
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"]


def test_state_machines_are_those_of_the_code() -> None:
    """The generated document is not stale."""
    assert STATE_MACHINE.read_text("utf-8") == state_machine()


def test_every_conformance_case_has_a_line() -> None:
    """1 to 140, each once, in order, with a status."""
    text = (ROOT / "docs" / "evidence" / "conformance.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, CASES + 1))
    for number, _, status in rows:
        known = r"n/a|deviates D-\d{3}\b|open|`test_"
        assert re.match(known, status), f"case {number}: {status}"


def test_conformance_names_tests_that_exist_and_all_numbered_ones() -> None:
    """Every test in the table is there, and every numbered test is in the table."""
    text = (ROOT / "docs" / "evidence" / "conformance.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    there = all_tests()
    assert named - there == set()
    mine = there - all_tests("faults")  # those are numbered by docs/evidence/faults.md
    assert {name for name in mine if name.startswith("test_case_")} - named == set()


def test_what_testing_names_is_there() -> None:
    """Tests, paths below tests/, and every step of DESIGN.md's walk, once."""
    text = (ROOT / "tests" / "README.md").read_text("utf-8")
    assert set(re.findall(r"`(test_\w+[a-z0-9])`", text)) - all_tests() == set()
    paths = {each.split("/<")[0] for each in re.findall(r"`(tests/[^`*]+)`", text)}
    assert {each for each in paths if not (ROOT / each).exists()} == set()
    faults = (ROOT / "docs" / "evidence" / "faults.md").read_text("utf-8")
    kills = faults.partition("## Which test kills where")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(test_\w+[a-z0-9])`", kills)) - all_tests() == set()
    walk = (ROOT / "DESIGN.md").read_text("utf-8")
    rows = " ".join(re.findall(r"^\| ([SCR]\d[^|]*)\|", kills, re.MULTILINE))
    steps = re.compile(r"\b[SCR]\d\b")
    assert steps.findall(rows) == re.findall(r"^- \*\*([SCR]\d)\*\*", walk, re.MULTILINE)


def test_conformance_counts_add_up() -> None:
    """The sentence at the top counts the rows below it."""
    text = (ROOT / "docs" / "evidence" / "conformance.md").read_text("utf-8")
    statuses = re.findall(r"^\| \d+ \| .+ \| (.+) \|$", text, re.MULTILINE)
    counts = [
        sum(status.startswith(word) for status in statuses)
        for word in ("`test_", "deviates", "n/a", "open")
    ]
    reported = re.search(r"Of 140: (\d+) .*?, (\d+) deviate, (\d+) do not apply, (\d+) open", text)
    assert reported is not None
    assert [int(number) for number in reported.groups()] == counts


def test_places_that_are_named_are_there() -> None:
    """Each file and name in DESIGN.md, CONTRIBUTING.md and the reasons why a message waits."""
    waits = "checker/admin/transactions/waits.py"
    named = [(waits, "checker.", (ROOT / "halfbridge" / waits).read_text("utf-8"))]
    named += [
        (name, "", (ROOT / name).read_text("utf-8")) for name in ("DESIGN.md", "CONTRIBUTING.md")
    ]
    for path, package, text in named:
        places = re.findall(r"`([\w/]+)\.py:([\w.]+)`", text)
        assert places, path
        for file, name in places:
            resolve_name(f"halfbridge.{package}{file.replace('/', '.')}:{name}")


def test_deviations_that_are_named_are_described() -> None:
    """Each D-nnn anywhere stands in DESIGN.md's table."""
    design = (ROOT / "DESIGN.md").read_text("utf-8")
    described = set(re.findall(r"^\| (D-\d{3}) \|", design, re.MULTILINE))
    for path in documents():
        assert set(re.findall(r"D-\d{3}", path.read_text("utf-8"))) <= described, path


def test_public_names_are_there() -> None:
    """Every name that a package offers can be imported from it."""
    packages = ("halfbridge", "halfbridge.sql", "halfbridge.spark", "halfbridge.testkit.memory")
    for package in packages:
        module = import_module(package)
        for name in module.__all__:
            assert getattr(module, name) is not None, f"{package}.{name}"


def site_of_documents() -> ModuleType:
    """Return docs/site.py as a module; skip the test without the extra `docs`."""
    pytest.importorskip("mkdocs")
    spec = spec_from_file_location("site_of_documents", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    site = module_from_spec(spec)
    spec.loader.exec_module(site)
    return site


def test_each_error_says_who_must_act() -> None:
    """In the tree of its module, which the reference shows; the roots and a caller's bug apart."""
    site = site_of_documents()
    named = {
        name
        for package in ("halfbridge", "halfbridge.sql")
        for name in import_module(package).__all__
        if name.endswith("Error")
    }
    named |= {path.rsplit(".", 1)[1] for path in site.RELAY_ERRORS}
    assert named - set(site.actions()) == {"BridgeError", "SqlError", "IllegalTransitionError"}


def test_the_reference_can_be_generated() -> None:
    """What `make docs` takes from the code is there."""
    site = site_of_documents()
    for name, generate in site.GENERATED.items():
        assert len(generate().splitlines()) > 10, name


def shown_commands() -> list[tuple[Path, str, list[str]]]:
    """Return page, command and options of every `halfbridge` command that a document shows."""
    found = []
    for path in documents():
        if path.name == "CHANGELOG.md" or path.parent.name == "adr":  # they tell of their day
            continue
        text = path.read_text("utf-8").replace("\\\n", " ")
        shown = [
            line
            for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
            for line in block.split("\n")
        ]
        shown += re.findall(r"`(halfbridge [^`]+)`", text)
        for line in shown:
            words = re.match(r"\s*(?:\.venv/bin/)?halfbridge ([a-z][^#|><]*)", line)
            if words is not None:
                found.append((path, words[1], re.findall(r"(?<=\s)--[a-z][a-z-]+", words[1])))
    return found


def unknown_in(line: str, options: list[str]) -> str:
    """Return what of a shown command the program does not know; empty: it knows all."""
    command: click.Command = LazyGroup(name="halfbridge")
    context = click.Context(command)
    for word in line.split():
        if not isinstance(command, click.Group):
            break
        try:
            inner = command.get_command(context, word)
        except click.UsageError:
            inner = None
        if inner is None:
            return word
        command = inner
    params = command.get_params(context)
    known = {name for param in params for name in (*param.opts, *param.secondary_opts)}
    return ", ".join(set() if isinstance(command, click.Group) else set(options) - known)


def test_commands_that_documents_show_exist() -> None:
    """Each command and each of its options is one of the program's."""
    shown = shown_commands()
    assert len(shown) > 100
    wrong = [(path, line, unknown_in(line, options)) for path, line, options in shown]
    assert [each for each in wrong if each[2]] == []


if __name__ == "__main__":
    STATE_MACHINE.write_text(state_machine(), "utf-8")
