"""What is wrong with the installation, as `halfbridge doctor` finds it from this process.

Findings about a daemon's own settings and machine are left out: this process has neither. The
rights that are tried are those of this process's principal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.doctor.facts import finding_body, host_facts
from halfbridge.checker.admin.doctor.gather import Request, gather
from halfbridge.checker.admin.doctor.judge import judge
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.policy import load_policy
from halfbridge.kafka.adapter import system_ports
from halfbridge.web.api.routes import Call, Route
from halfbridge.web.work import Keeps

if TYPE_CHECKING:
    from halfbridge.checker.admin.doctor.facts import Finding
    from halfbridge.web.services import Services

# A dozen questions to each broker: not with each look at the page.
KEEPS = Keeps(fresh_s=30.0, old_s=600.0)
QUESTIONS_S_MAX = 20.0
_OF_A_DAEMON = frozenset(("settings-differ", "memory", "open-files"))


def look(services: Services) -> tuple[Finding, ...]:
    """Return all findings, errors first."""
    given = services.config
    config = CheckerConfig(
        bootstrap_servers=given.bootstrap_servers,
        topic_prefix=given.topic_prefix,
        kafka=given.kafka,
    )
    facts = gather(
        config,
        load_policy(None, names=config.names),
        Request(timeout_s=QUESTIONS_S_MAX),
        host=host_facts(),
        ports=services.ports or system_ports(),
    )
    return tuple(each for each in judge(facts, config) if each.code not in _OF_A_DAEMON)


async def doctor(call: Call) -> dict[str, Any]:
    """Return what is wrong, and the command that mends it."""
    kept = await call.kept("doctor", look, KEEPS)
    return {**finding_body(kept.value), "age_s": kept.age_s}


ROUTES = (
    Route(
        path="/doctor",
        summary="What is wrong with the installation, each with a command that mends it.",
        answer=doctor,
    ),
)
