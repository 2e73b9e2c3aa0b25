"""The page of Django's admin: undecided transactions and dead letters of each producer group.

It shows what `halfbridge tx list` and `halfbridge dead list` read from the topics, and changes
nothing.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.template.response import TemplateResponse
from django.urls import path

from halfbridge.checker.admin.transactions.explain import span_text
from halfbridge.checker.admin.words import shown_time
from halfbridge.django.command_line import command_line
from halfbridge.django.models import MessageTransaction
from halfbridge.django.process import member
from halfbridge.kafka.errors import BridgeError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.http import HttpRequest

ROWS_MAX = 100  # of each table: as many as a person reads
# Each of two commands for a group. Some 500,000 records are read in this time; gunicorn ends a
# worker that needs 30 s for a request.
COMMAND_S_MAX = 10.0
# A command takes a processor from the requests of the service: one at a time in each process.
_READING = Lock()


@dataclass(slots=True, kw_only=True)
class GroupFindings:
    """What the page shows of one producer group."""

    database: str  # alias, a key of the setting HALFBRIDGE
    producer_group: str = ""
    # Of `tx list --json`, with `age`; of `dead list --json`, with `stored`. The values are text.
    undecided: list[dict[str, Any]] = field(default_factory=list)
    undecided_count: int = 0
    dead: list[dict[str, Any]] = field(default_factory=list)
    dead_count: int = 0
    notes: list[str] = field(default_factory=list)  # what is not known, and what to do


def findings() -> Iterator[GroupFindings]:
    """Yield what each producer group of the setting HALFBRIDGE has."""
    for database in getattr(settings, "HALFBRIDGE", {}):
        found = GroupFindings(database=database)
        try:
            found.producer_group = member(database).producer.config.producer_group
            _add_undecided(found)
            _add_dead(found)
        except BridgeError as error:
            found.notes.append(str(error))
        yield found


def _add_undecided(found: GroupFindings) -> None:
    read = _read(found, "tx", "list")
    found.undecided_count = read.get("undecided", 0)
    for each in read.get("stopped", ()):
        what = f"pair {each['partition']} is stopped, and what is undecided in it is not known"
        found.notes.append(f"{what}: {each['why']}")
    for each in read.get("transactions", ()):
        found.undecided.append({**each, "age": span_text(each["age_ms"])})


def _add_dead(found: GroupFindings) -> None:
    read = _read(found, "dead", "list")
    for each in read.get("transactions", ()):
        found.dead.append({**each, "stored": shown_time(each["stored_ms"])})
    found.dead_count = len(found.dead) + read.get("more", 0)


def _read(found: GroupFindings, *words: str) -> Any:
    """Return what a command prints with --json; {} and a note of its error if it prints nothing."""
    options = ("--group", found.producer_group, "--limit", str(ROWS_MAX), "--json")
    command, environ = command_line(found.database, (*words, *options))
    if not _READING.acquire(blocking=False):
        raise RetriableError("another request reads the topics now: reload the page")
    try:
        with subprocess.Popen(  # noqa: S603  # this very Python
            command,
            env=environ,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                printed, said = process.communicate(timeout=COMMAND_S_MAX)
            except subprocess.TimeoutExpired:
                process.terminate()
                printed, said = "", f"not done in {COMMAND_S_MAX:g} s; run it in a terminal"
    finally:
        _READING.release()
    if not printed:
        why = said.strip().rpartition("\n")[2]
        found.notes.append(f"manage.py halfbridge {' '.join(words)}: {why}")
    return json.loads(printed or "{}")


@admin.register(MessageTransaction)
class MessageTransactionAdmin(admin.ModelAdmin):
    """One page in place of a list of rows. It needs the permission to view."""

    def get_urls(self) -> list[Any]:
        """Return the one page, under the name to which the admin's index links."""
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name="halfbridge_messagetransaction_changelist")]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: only clients begin transactions."""
        del request
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Return False: commands decide, and keep who did so and why."""
        del request, obj
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Return False, as for changes."""
        del request, obj
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> TemplateResponse:
        """Return the page. PermissionDenied: an administrator grants the permission to view."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": "Undecided transactions and dead letters",
            "opts": self.opts,
            "groups": list(findings()),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/halfbridge/transactions.html", context)
