"""The page of Django's admin: undecided transactions and dead letters of each producer group.

It shows what `halfbridge tx list` and `halfbridge dead list` read from the topics, and changes
nothing.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from threading import Lock
from time import monotonic
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
from halfbridge.kafka.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django.http import HttpRequest

ROWS_MAX = 100  # of each table: as many as a person reads
# All commands of one page. gunicorn ends a worker that needs 30 s for a request.
PAGE_S_MAX = 20.0
# Commands take a processor from the requests of the service: one page at a time in each process.
_READING = Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFindings:
    """What the page shows of one producer group."""

    database: str  # alias, a key of the setting HALFBRIDGE
    producer_group: str = ""
    undecided: Sequence[Mapping[str, Any]] = ()  # rows of `tx list --json`, each with `age` as text
    undecided_count: int = 0
    dead: Sequence[Mapping[str, Any]] = ()  # rows of `dead list --json`, each with `stored` as text
    dead_count: int = 0
    notes: Sequence[str] = ()  # what is not known, and what to do


def findings() -> list[GroupFindings]:
    """Return what each producer group of the setting HALFBRIDGE has, within PAGE_S_MAX."""
    databases = getattr(settings, "HALFBRIDGE", {})
    if not _READING.acquire(blocking=False):
        note = "another request reads the topics now: reload the page"
        return [GroupFindings(database=each, notes=[note]) for each in databases]
    try:
        ends_at_s = monotonic() + PAGE_S_MAX
        return [_findings_of(each, ends_at_s) for each in databases]
    finally:
        _READING.release()


def _findings_of(database: str, ends_at_s: float) -> GroupFindings:
    try:
        group = member(database).producer.config.producer_group
        options = ("--group", group, "--limit", str(ROWS_MAX), "--json")
        undecided, no_undecided = _printed(database, ("tx", "list"), options, ends_at_s)
        dead, no_dead = _printed(database, ("dead", "list"), options, ends_at_s)
    except ConfigError as error:
        return GroupFindings(database=database, notes=[str(error)])
    found, letters = undecided.get("transactions", ()), dead.get("transactions", ())
    stopped = [
        f"pair {each['partition']} is stopped, and what is undecided in it is not known:"
        f" {each['why']}"
        for each in undecided.get("stopped", ())
    ]
    return GroupFindings(
        database=database,
        producer_group=group,
        undecided=[{**each, "age": span_text(each["age_ms"])} for each in found],
        undecided_count=undecided.get("undecided", 0),
        dead=[{**each, "stored": shown_time(each["stored_ms"])} for each in letters],
        dead_count=len(letters) + dead.get("more", 0),
        notes=[*stopped, *no_undecided, *no_dead],
    )


def _printed(
    database: str, words: Sequence[str], options: Sequence[str], ends_at_s: float
) -> tuple[Any, Sequence[str]]:
    """Return what a command prints with --json; {} and its error in one line if it prints nothing.

    Raises ConfigError: the user corrects the setting that it names.
    """
    command, environ = command_line(database, (*words, *options))
    with subprocess.Popen(  # noqa: S603  # this very Python
        command,
        env=environ,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            printed, said = process.communicate(timeout=max(0.0, ends_at_s - monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()
            printed, said = "", f"not done in {PAGE_S_MAX:g} s; run it in a terminal"
    if printed:
        return json.loads(printed), ()
    why = said.strip().rpartition("\n")[2] or f"it ended with {process.returncode}"
    return {}, [f"manage.py halfbridge {' '.join(words)}: {why}"]


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
            "groups": findings(),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/halfbridge/transactions.html", context)
