"""The facts and findings of `halfbridge doctor` on an installation in memory."""

from typing import Any

from halfbridge.checker.admin.doctor.facts import Facts, Finding, Host
from halfbridge.checker.admin.doctor.gather import Request, gather
from halfbridge.checker.admin.doctor.judge import judge
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.policy import load_policy
from halfbridge.testkit.memory import MemoryStack

PROCESS = "doctor"


def facts_of(stack: MemoryStack, *, config: CheckerConfig | None = None, **request: Any) -> Facts:
    """Return the facts that a separate process gathers, by default with the daemon's settings."""
    config = config or stack.config
    ports = stack.machine.ports(stack.machine.process(PROCESS))
    policy = load_policy(config.policy_file, names=config.names)
    return gather(config, policy, Request(**request), host=Host(), ports=ports)


def found_by(stack: MemoryStack, **request: Any) -> dict[str, Finding]:
    """Return the findings by code; of several with the same code the last."""
    return {each.code: each for each in judge(facts_of(stack, **request), stack.config)}
