"""Findings about the key file, and about who does not sign. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from halfbridge.checker.admin.doctor.codes import Finding, Severity, finding
from halfbridge.checker.admin.words import counted, shown_time
from halfbridge.logs import one_line
from halfbridge.serde.signing_keys import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.checker.admin.doctor.facts import Facts
    from halfbridge.checker.config import CheckerConfig

_WRITERS = {
    Role.CLIENT: "clients",
    Role.DAEMON: "workers, which wrote copies",
    Role.OPERATOR: "operators, who resumed or redelivered",
}

_REFUSED = (
    "producer group {group}: {records} of its {writers} are not believed since {since}, the newest"
    " of {newest}: {why}. Such records are dead letters INVALID. Give the writers a key file with a"
    " key of role {role}, and restart them; if they have one, a stranger writes"
)
_TO_BE_REFUSED = (
    "producer group {group}: {records} of its {writers} would not be believed, the newest of"
    " {newest}: {why}. Signatures are demanded from {since} on. Give the writers a key file with a"
    " key of role {role} before that time, and restart them"
)


def judge_keys(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    """Yield what has to be done before records are not believed, and who writes such records."""
    path = shlex.quote(str(config.key_file))
    if facts.key_file_flaw:
        yield finding("key-file", one_line(facts.key_file_flaw), f"halfbridge keys check {path}")
    for problem in facts.key_problems:
        yield finding("keys", one_line(problem), f"halfbridge keys check {path}")
    for each in facts.not_believed:
        holds = each.newest_ms >= each.demanded_from_ms
        text = _REFUSED if holds else _TO_BE_REFUSED
        what = text.format(
            group=one_line(each.producer_group),
            records=counted(each.records, "half record"),
            writers=_WRITERS[each.role],
            newest=shown_time(each.newest_ms),
            why=one_line(each.why),
            since=shown_time(each.demanded_from_ms),
            role=each.role.value,
        )
        made = finding("not-signed", what, f"export HALFBRIDGE_KEY_FILE={path}")
        yield made if holds else Finding(Severity.WARNING, made.code, made.what, made.mend)
