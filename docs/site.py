"""Hooks of MkDocs: pages that are made of the code or of files outside docs/, and the whole text.

A link from a page to a file outside docs/ is kept where the site has that file as a page. Otherwise
it becomes the file's path; a path that does not exist is an error of the build.
"""

from __future__ import annotations

import inspect
import json
import logging
import posixpath
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml
from mkdocs.structure.files import File

from halfbridge.changes.writing import ChangesMetrics
from halfbridge.checker.admin.doctor.facts import MEANINGS
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.process.http import FleetCollector
from halfbridge.checker.status import Status
from halfbridge.cli import COMMANDS, LazyGroup
from halfbridge.serde.settings import describe
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.metrics import RelayMetrics
from halfbridge.sql.responder import Responder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Files outside docs/ that are pages of the site.
OUTSIDE = {
    "README.md": "index.md",
    "DESIGN.md": "internals/design.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "internals/changelog.md",
    "tests/README.md": "internals/tests.md",
    "examples/README.md": "examples.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
WHOLE = "halfbridge.md"
log = logging.getLogger("mkdocs.hooks.site")


# Source of a page -> its address and its Markdown, as the site is built.
PAGES: dict[str, tuple[str, str]] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the decisions, which the navigation names by `adr/*`."""
    found = sorted(path.name for path in (ROOT / "docs" / "adr").glob("0*.md"))
    for section in config.nav or []:
        for entries in section.values():
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, dict) and "Decisions" in entry:
                    entry["Decisions"] = ["adr/README.md", *(f"adr/{name}" for name in found)]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages, and those of files outside docs/."""
    pages = {f"reference/{name}.md": make() for name, make in GENERATED.items()}
    for path, page in OUTSIDE.items():
        pages[page] = (ROOT / path).read_text("utf-8")
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links as they are in the checkout into links of the site."""
    del config
    here = page.file.src_uri
    origin = next((path for path, to in OUTSIDE.items() if to == here), f"docs/{here}")
    text = _outside_code(markdown, lambda part: _linked(part, origin, here, files))
    PAGES[here] = (page.file.dest_uri, text)
    return text


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write llms.txt, and the whole text as one file of Markdown."""
    site = Path(config.site_dir)
    index = [
        "# halfbridge",
        "",
        f"> {config.site_description}",
        "",
        f"[The whole text as one file of Markdown]({WHOLE})",
        "",
    ]
    whole = []
    for source in _ordered(config.nav or []):
        address, text = PAGES[source]
        title, about = _told(text, source)
        index.append(f"- [{title}]({address})" + (f": {about}" if about else ""))
        whole.append(f"<!-- {source} -->\n\n{_spelled_out(text)}")
    (site / "llms.txt").write_text("\n".join(index) + "\n", "utf-8")
    (site / WHOLE).write_text("\n\n".join(whole) + "\n", "utf-8")


def _told(text: str, source: str) -> tuple[str, str]:
    """Return a page's title, and the first sentence of its first paragraph."""
    match = re.search(r"^# (.+)$\n+([^\n#|`!<-][^#]*?\.(?=\s))?", text, re.MULTILINE)
    if match is None:
        return source, ""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[2] or "")
    return match[1], " ".join(plain.replace("**", "").split())


def _ordered(nav: Any) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, str):
            yield entry
            continue
        for value in entry.values():
            yield from _ordered(value if isinstance(value, list) else [value])


def _outside_code(markdown: str, change: Any) -> str:
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _linked(markdown: str, origin: str, here: str, files: Files) -> str:
    def site_link(match: re.Match[str]) -> str:
        picture, words, target, anchor = match.groups(default="")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        to = OUTSIDE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if to and files.get_file_from_path(to) is not None:
            relative = posixpath.relpath(to, posixpath.dirname(here) or ".")
            return f"{picture}[{words}]({relative}{anchor})"
        if not (ROOT / path).exists():
            log.warning("%s: a link leads to %s, which does not exist", origin, path)
        return f"`{path}`" if words.strip("`") in path else f"{words} (`{path}`)"

    return LINK.sub(site_link, markdown)


def _spelled_out(text: str) -> str:
    """Return a page's Markdown with what mkdocstrings would fill in."""

    def entry(match: re.Match[str]) -> str:
        module, _, name = match[1].rpartition(".")
        return f"### {name}\n\n{inspect.getdoc(getattr(import_module(module), name)) or ''}"

    return re.sub(r"^::: (\S+)$", entry, text, flags=re.MULTILINE)


# --- reference -----------------------------------------------------------------------------------


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(re.sub(r"\s+", " ", str(cell)) for cell in cells) + " |"

    heads = tuple(heads)
    return "\n".join([line(heads), "|---" * len(heads) + "|", *map(line, rows)])


def _escaped(text: object) -> str:
    return re.sub(r"([|*\[])", r"\\\1", str(text)).replace("<", "&lt;")


def settings() -> str:
    """Return the settings of client, daemon and relay."""
    client = import_module("halfbridge").BridgeConfig
    parts = [
        "# Settings",
        (
            "A setting `name` is a flag `--name` of the command, an environment variable"
            " `HALFBRIDGE_NAME`, and a key of a TOML file (`--config`). Flags override the"
            " environment, and the environment overrides the file. The client takes arguments of"
            " `TransactionProducer` or the same environment variables. The error for a wrong value"
            " names the setting, the origin of the value and what is allowed."
            " [Which of them matter](../how-to/size.md#settings-that-matter)."
        ),
    ]
    kinds = (("Client", client), ("Daemon", CheckerConfig), ("Relay", RelayConfig))
    for title, cls in kinds:
        rows = []
        for each in describe(cls):
            default = "" if each.default in ("", None) or each.default == {} else each.default
            allowed = ", ".join(each.words)
            if not allowed and each.minimum is not None:
                allowed = (
                    f"{each.minimum} to {each.maximum}"
                    if each.maximum
                    else (f"at least {each.minimum}")
                )
            rows.append((f"`{each.name}`", _escaped(default), allowed, _escaped(each.doc)))
        parts += [f"## {title}", _table(("Setting", "Default", "Allowed", "Meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """Return every command with its options."""
    group = LazyGroup(name="halfbridge")
    parts = [
        "# Commands",
        (
            "Exit status, unless a command says otherwise: 0 success, 1 failure, 2 wrong usage or"
            " configuration. An error is one line on standard error; `--debug` shows the traceback."
        ),
    ]
    for name in sorted(COMMANDS):
        parts += _command(group, name, "halfbridge", 2)
    return "\n\n".join(parts) + "\n"


def _command(parent: click.Group, name: str, path: str, level: int) -> list[str]:
    context = click.Context(parent, info_name=path)
    command = parent.get_command(context, name)
    if command is None or command.hidden:
        return []
    own = click.Context(command, info_name=f"{path} {name}")
    # \b is click's mark of a paragraph that keeps its lines.
    text = textwrap.dedent(inspect.cleandoc(command.help or "")).replace("\b\n", "")
    parts = ["#" * level + f" {path} {name}", _escaped(text)]
    if isinstance(command, click.Group):
        for each in command.list_commands(own):
            parts += _command(command, each, f"{path} {name}", level + 1)
        return parts
    usage = " ".join([f"{path} {name}", *command.collect_usage_pieces(own)])
    parts.append(f"```text\n{usage}\n```")
    rows = []
    for param in command.get_params(own):
        record = param.get_help_record(own)
        if record is not None:
            rows.append((f"`{record[0].replace('|', ', ')}`", _escaped(record[1])))
    parts.append(_table(("Option", "Meaning"), rows))
    return parts


def metrics() -> str:
    """Return the metrics of daemon and relays."""
    registries = (
        ("Daemon", Status().metrics.registry),
        ("Relay of a local message table", RelayMetrics().registry),
        ("Relay of changes", ChangesMetrics().registry),
        ("Responder (`halfbridge fence respond`)", Responder(()).metrics.registry),
    )
    parts = [
        "# Metrics",
        (
            "With several workers each sample of the daemon has the label `worker`. Counters end"
            " with `_total`. Durations are seconds."
        ),
    ]
    for title, registry in registries:
        labels = _labels(registry)
        rows = [
            (f"`{family.name}`", family.type, labels.get(family.name, ""), family.documentation)
            for family in registry.collect()
        ]
        parts += [f"## {title}", _table(("Metric", "Type", "Labels", "Meaning"), rows)]
    rows = [
        (f"`{each.name}`", each.type, "`worker`", each.documentation)
        for each in FleetCollector(lambda: ()).collect()
    ]
    parts += ["## Supervisor", _table(("Metric", "Type", "Labels", "Meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def _labels(registry: Any) -> dict[str, str]:
    # prometheus_client keeps the label names of a metric without samples in no public place.
    return {
        collector._name: ", ".join(f"`{name}`" for name in collector._labelnames)  # noqa: SLF001 (see above)
        for collector in registry._collector_to_names  # noqa: SLF001 (see above)
        if hasattr(collector, "_labelnames")
    }


def alerts() -> str:
    """Return the alerts of halfbridge/monitoring/alerts.yml, each with its page."""
    rules = yaml.safe_load((ROOT / "halfbridge/monitoring/alerts.yml").read_text("utf-8"))
    rows = []
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        notes = rule["annotations"]
        page, _, anchor = notes["runbook"].partition("#")
        link = f"../{page.removeprefix('docs/')}" + (f"#{anchor}" if anchor else "")
        words = f"{notes['summary']} {notes['description']}"
        plain = re.sub(r"\{\{.*?\}\}", "N", re.sub(r"\{\{ with .*?\{\{ end \}\}", "it", words))
        rows.append(
            (
                f"[`{rule['alert']}`]({link})",
                rule["labels"]["severity"],
                rule.get("for", "at once"),
                _escaped(plain),
            )
        )
    heads = ("Alert", "Severity", "After", "Meaning")
    intro = (
        "The rules that `halfbridge monitoring alerts` prints; each alert links to the page that"
        " says what to do. Thresholds are starting points."
    )
    return f"# Alerts\n\n{intro}\n\n{_table(heads, rows)}\n"


def findings() -> str:
    """Return what `halfbridge doctor` may find."""
    rows = [
        (f"`{code}`", severity.value, meaning) for code, (severity, meaning) in MEANINGS.items()
    ]
    intro = (
        "What `halfbridge doctor` may find. Each finding is printed with the command that mends it,"
        " or that shows what to mend; [incidents](../incidents/index.md) has the background."
    )
    return f"# Findings of doctor\n\n{intro}\n\n{_table(('Code', 'Severity', 'Meaning'), rows)}\n"


def headers() -> str:
    """Return the header names, and the Avro records that they carry."""
    names = import_module("halfbridge.serde.headers")
    rows = [
        (f"`{names.TRANSACTION_ID}`", "real record", "the transaction's id, 32 hexadecimal digits"),
        (f"`{names.BORN_TIMESTAMP}`", "real record", "when the client made the message, ms"),
        (
            f"`{names.MESSAGE_INDEX}`",
            "real record",
            "the message's place in its transaction, from 0; absent for 0",
        ),
        (f"`{names.HALF}`", "half record", "HalfMetadata"),
        (f"`{names.CONTEXT}`", "half record", "what the sender leaves for its checker"),
        (f"`{names.SIGN}`", "half and op record", "Signature"),
        (f"`{names.CHECK}`", "check request", "CheckRequest"),
        (f"`{names.DEAD}`", "dead letter", "DeadLetter"),
        (f"`{names.DEAD_MARK}`", "mark of a dead letter", "DeadMark"),
    ]
    parts = [
        "# Headers and records",
        (
            "Users' messages may not have these headers. Those of real records reach consumers; all"
            " others are internal. Values are text for the first three, and otherwise Avro in"
            " single-object encoding."
        ),
        _table(("Header", "On", "Value"), rows),
    ]
    newest: dict[str, Any] = {}
    for path in sorted((ROOT / "halfbridge/serde/schemas").glob("*.avsc")):
        newest[path.name.split(".")[0]] = (path.name, json.loads(path.read_text("utf-8")))
    for file, schema in newest.values():
        fields = [
            (f"`{each['name']}`", _escaped(_avro(each["type"])), _escaped(each.get("doc", "")))
            for each in schema["fields"]
        ]
        parts += [
            f"## {schema['name']}",
            f"`{file}`. {_escaped(schema.get('doc', ''))}",
            _table(("Field", "Type", "Meaning"), fields),
        ]
    return "\n\n".join(parts) + "\n"


def _avro(kind: Any) -> str:
    if isinstance(kind, list):
        return " or ".join(map(_avro, kind))
    if isinstance(kind, dict):
        if kind["type"] == "enum":
            return ", ".join(kind["symbols"])
        inner = kind.get("items") or kind.get("values")
        return f"{kind['type']} of {_avro(inner)}" if inner else str(kind["type"])
    return str(kind)


def _public(package: str) -> Iterator[tuple[str, Any]]:
    module = import_module(package)
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if hasattr(value, "__module__"):
            yield name, value


ERRORS = ("halfbridge", "halfbridge.sql", "halfbridge.testkit.memory")


# Errors of modules that offer no names of their own.
RELAY_ERRORS = ("halfbridge.relays.DrainError", "halfbridge.changes.service.PositionLostError")
# Their docstrings draw the trees of errors.
TREES = ("halfbridge.kafka.errors", "halfbridge.sql.errors")


def actions() -> dict[str, str]:
    """Return what to do about each error, by its line in a tree."""
    trees = (import_module(each).__doc__ or "" for each in TREES)
    return dict(re.findall(r"[├└]─ (\w+) +(.+)", "\n".join(trees)))


def errors() -> str:
    """Return the errors that users meet, with who must act."""
    about = (
        "Each text says what to do. Errors are split by who must act. All that the client and the"
        " database part raise are `BridgeError`, but IllegalTransitionError, a caller's mistake."
    )
    parts = ["# Errors", about]
    seen: set[type] = set()
    for package in ERRORS:
        found = [
            value
            for _, value in _public(package)
            if inspect.isclass(value) and issubclass(value, BaseException) and value not in seen
        ]
        seen.update(found)
        parts += [f"## {package}", _errors_table(found)]
    paths = (each.rsplit(".", 1) for each in RELAY_ERRORS)
    relays = [getattr(import_module(module), name) for module, name in paths]
    return "\n\n".join([*parts, "## Relays", _errors_table(relays)]) + "\n"


def _errors_table(found: Iterable[type]) -> str:
    acts = actions()
    rows = [
        (
            f"`{each.__name__}`",
            ", ".join(f"`{base.__name__}`" for base in each.__bases__),
            _escaped(acts.get(each.__name__, "")),
            _escaped((inspect.getdoc(each) or "").split("\n\nAttributes:")[0]),
        )
        for each in found
    ]
    return _table(("Error", "Is a", "Who must act, and how", "Meaning"), rows)


API = ("halfbridge", "halfbridge.sql", "halfbridge.spark", "halfbridge.testkit.memory")


def python() -> str:
    """Return the page of the Python API: mkdocstrings fills in what each name is."""
    parts = ["# Python API", "The names that a package offers. [Errors](errors.md) have a page."]
    for package in API:
        parts.append(f"## {package}")
        for name, value in _public(package):
            known = inspect.isclass(value) or inspect.isfunction(value)
            if known and not (inspect.isclass(value) and issubclass(value, BaseException)):
                parts.append(f"::: {value.__module__}.{name}")
    return "\n\n".join(parts) + "\n"


GENERATED = {
    "settings": settings,
    "commands": commands,
    "metrics": metrics,
    "alerts": alerts,
    "findings": findings,
    "headers": headers,
    "errors": errors,
    "python": python,
}
