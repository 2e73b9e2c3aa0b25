"""The demo's output: progress on standard error, then a table and one verdict line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console
    from typing_extensions import Self

    from halfbridge.demo.plan import Kind
    from halfbridge.demo.result import DemoResult

_WORDS = {
    "committed": "committed",
    "rolled_back": "rolled back",
    "killed": "killed before its decision",
    "abandoned": "never decided",
    "unknown": "never decided, no fence",
    "multi": "three messages, two topics",
}
_DECIDED, _DELIVERED, _DEAD = "orders decided", "messages delivered", "messages dead-lettered"


class Display:
    """Steps and three progress bars; plain lines if standard error is not a terminal.

    Args:
        console: Writes to standard error.
        orders: Number of orders that their service decides itself.
        delivered: Messages that must be delivered.
        dead_lettered: Messages that must be dead-lettered.
    """

    def __init__(
        self, console: Console, *, orders: int, delivered: int, dead_lettered: int
    ) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        totals = {_DECIDED: orders, _DELIVERED: delivered, _DEAD: dead_lettered}
        self._tasks = {
            name: self._progress.add_task(name, total=total) for name, total in totals.items()
        }

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def step(self, text: str) -> None:
        """Say what happens now."""
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, *, decided: int, delivered: int, dead_lettered: int) -> None:
        """Move the bars."""
        for name, count in ((_DECIDED, decided), (_DELIVERED, delivered), (_DEAD, dead_lettered)):
            self._progress.update(self._tasks[name], completed=count)


def make_table(result: DemoResult) -> Table:
    """Return expected | delivered | dead-lettered per kind; the numbers count messages."""
    table = Table(caption="orders, and the messages that must come out and did")
    table.add_column("kind")
    for name in ("orders", "expected", "delivered", "dead-lettered"):
        table.add_column(name, justify="right")
    for kind, found in result.kinds.items():
        row = (found.orders, found.expected.total, found.delivered, found.dead_lettered)
        table.add_row(_name(kind), *map(str, row), style=None if found.ok else "bold red")
    return table


def verdict_line(result: DemoResult) -> str:
    """Return the verdict as one line."""
    if result.ok:
        return (
            "OK: every committed message arrived exactly once, in per-key order, and no other"
            f" one did ({result.seconds:.1f} s)"
        )
    summary = result.to_json()
    return (
        f"FAILED: {summary['lost']} lost, {summary['duplicates']} duplicated,"
        f" {summary['out_of_order']} out of order, {len(result.verdict.findings)} findings"
        f" ({result.seconds:.1f} s)"
    )


def _name(kind: Kind) -> str:
    return _WORDS[kind.value]
