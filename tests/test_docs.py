"""The documents say what the code says. `python tests/test_docs.py` writes what is generated."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from halfbridge.bridge.config import BridgeConfig
from halfbridge.bridge.transaction import TRANSITIONS
from halfbridge.bridge.transaction import State as ClientState
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.status import Status
from halfbridge.serde.protocol import EFFECTS, STATE_AFTER, State
from halfbridge.serde.records import OpKind
from halfbridge.serde.settings import describe
from halfbridge.sql.local_messages import rows as row_states

ROOT = Path(__file__).parents[1]
STATE_MACHINE = ROOT / "docs" / "state_machine.md"
CLIENT = ROOT / "docs" / "client.md"
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
        "| State | Event | Leads to |",
        "|---|---|---|",
    ]
    for before in ClientState:
        lines += [
            f"| {before.value} | {event.value} | {then.value} |"
            for event, then in TRANSITIONS[before].items()
        ]
    lines += [
        "",
        "## The life of a row (local message table)",
        "",
        "What is not listed changes nothing: the UPDATE finds no row.",
        "",
        "| State | Event | Leads to |",
        "|---|---|---|",
    ]
    edges = [
        (state.value, event.value, after.value)
        for state, events in row_states.TRANSITIONS.items()
        for event, after in events.items()
    ]
    lines += [f"| {state} | {event} | {after} |" for state, event, after in edges]
    lines += ["", "```mermaid", "stateDiagram-v2", "    [*] --> UNKNOWN: pre_send"]
    lines += ["    [*] --> LOCAL_COMMIT: add", "    [*] --> PREPARED: prepare"]
    lines += [f"    {state} --> {after}: {event}" for state, event, after in edges]
    lines += ["```"]
    return "\n".join(lines) + "\n"


def client() -> str:
    """Return docs/client.md with the table of settings as the code has it."""
    lines = ["| Setting | Default | What it is |", "|---|---|---|"]
    for each in describe(BridgeConfig):
        default = "" if each.default in ("", {}) else each.default
        lines.append(f"| `{each.name}` | {default} | {each.doc} |")
    table = "\n".join(["", *lines, ""])
    marked = re.compile(r"(?<=<!-- settings: begin -->\n).*(?=<!-- settings: end -->)", re.DOTALL)
    return marked.sub(lambda _: f"{table}\n", CLIENT.read_text("utf-8"))


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


def test_settings_of_the_client_are_those_of_the_code() -> None:
    """The generated table is not stale."""
    assert CLIENT.read_text("utf-8") == client()


def test_every_conformance_case_has_a_line() -> None:
    """1 to 140, each once, in order, with a status."""
    text = (ROOT / "docs" / "conformance.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, CASES + 1))
    for number, _, status in rows:
        known = r"n/a|deviates D-\d{3}\b|open|`test_"
        assert re.match(known, status), f"case {number}: {status}"


def test_conformance_names_tests_that_exist_and_all_numbered_ones() -> None:
    """Every test in the table is there, and every numbered test is in the table."""
    text = (ROOT / "docs" / "conformance.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    there = all_tests()
    assert named - there == set()
    mine = there - all_tests("faults")  # those are numbered by docs/faults.md
    assert {name for name in mine if name.startswith("test_case_")} - named == set()


def test_what_testing_names_is_there() -> None:
    """Tests, paths below tests/, and every step of DESIGN.md's walk, once."""
    text = (ROOT / "tests" / "README.md").read_text("utf-8")
    assert set(re.findall(r"`(test_\w+[a-z0-9])`", text)) - all_tests() == set()
    paths = {each.split("/<")[0] for each in re.findall(r"`(tests/[^`*]+)`", text)}
    assert {each for each in paths if not (ROOT / each).exists()} == set()
    walk = (ROOT / "DESIGN.md").read_text("utf-8")
    rows = " ".join(re.findall(r"^\| ([SCR]\d[^|]*)\|", text, re.MULTILINE))
    steps = re.compile(r"\b[SCR]\d\b")
    assert steps.findall(rows) == re.findall(r"^- \*\*([SCR]\d)\*\*", walk, re.MULTILINE)


def test_conformance_counts_add_up() -> None:
    """The sentence at the top counts the rows below it."""
    text = (ROOT / "docs" / "conformance.md").read_text("utf-8")
    statuses = re.findall(r"^\| \d+ \| .+ \| (.+) \|$", text, re.MULTILINE)
    counts = [
        sum(status.startswith(word) for status in statuses)
        for word in ("`test_", "deviates", "n/a", "open")
    ]
    told = re.search(r"Of 140: (\d+) .*?, (\d+) deviate, (\d+) do not apply, (\d+) open", text)
    assert told is not None
    assert [int(number) for number in told.groups()] == counts


def test_deviations_that_are_named_are_described() -> None:
    """Each D-nnn anywhere stands in DESIGN.md's table."""
    design = (ROOT / "DESIGN.md").read_text("utf-8")
    described = set(re.findall(r"^\| (D-\d{3}) \|", design, re.MULTILINE))
    for path in documents():
        assert set(re.findall(r"D-\d{3}", path.read_text("utf-8"))) <= described, path


def test_links_lead_somewhere() -> None:
    """Every relative link and its heading exist."""
    for path in documents():
        for link, heading in re.findall(
            r"\]\((?!https?:)([^)#]*)(#[^)]+)?\)", path.read_text("utf-8")
        ):
            target = (path.parent / link) if link else path
            assert target.exists(), f"{path.name}: {link}"
            if heading:
                titles = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}
                assert heading[1:] in anchors, f"{path.name}: {link}{heading}"


def test_settings_and_metrics_that_operations_names_exist() -> None:
    """Every metric of the daemon has its line, and every setting of the table is one."""
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    for family in Status().metrics.registry.collect():
        assert family.name in text, family.name
    (section,) = re.findall(r"## Settings that matter\n(.*)", text, re.DOTALL)
    known = {each.name for each in fields(CheckerConfig)}
    for setting in re.findall(r"^\| `(\w+)`", section, re.MULTILINE):
        assert setting in known, setting


if __name__ == "__main__":
    STATE_MACHINE.write_text(state_machine(), "utf-8")
    CLIENT.write_text(client(), "utf-8")
