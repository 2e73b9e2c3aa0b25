"""Measures checks: the first one, and many transactions that fall due at about the same time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from halfbridge.bench.result import per_second
from halfbridge.bench.scene import START_S_MAX, facts, go_on, open_scene
from halfbridge.serde.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bench.load import BenchConfig
    from halfbridge.bench.scene import Brokers, Scene
    from halfbridge.testkit.children import Child, Interrupts

_STORE_S_MAX = 300.0  # a run that takes longer has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecidedResult:
    """What checks took, with a checker that answers COMMIT at once.

    Attributes:
        undecided: Number of transactions that nobody decided, besides the first one.
        first_check_s: From the acknowledged half message of the first one to its check.
        delivered_s: From when the last of them fell due to when all were visible.
        checks_per_s: Checks a second, from the first to the last of the undecided ones.
    """

    undecided: int
    first_check_s: float
    delivered_s: float
    checks_per_s: float
    lost: int
    duplicates: int

    @property
    def ok(self) -> bool:
        return not self.lost and not self.duplicates

    def to_json(self) -> dict[str, Any]:
        return {k: round(v, 3) for k, v in asdict(self).items()}


def measure_undecided(
    config: BenchConfig, brokers: Brokers, *, interrupts: Interrupts, say: Callable[[str], None]
) -> UndecidedResult:
    with open_scene(config, brokers, interrupts=interrupts, say=say) as scene:
        return _run(scene)


def start_warm(scene: Scene) -> Child:
    """Return a daemon after the warm-up of the ordinary client, which has ended in order."""
    daemon = scene.start_daemon()
    consumer = scene.start("warm-consumer", "consumer")
    nothing = replace(scene.config, messages=0)
    client = scene.start("warm-client", "client", nothing)
    scene.warm_up(consumer, client, daemon)
    go_on(client)  # measure nothing
    scene.await_fact(client, "committed", timeout_s=START_S_MAX)
    go_on(client)  # close the producer, so that its place in the group is given up
    ended = client.process
    scene.children.wait_until(
        lambda: ended.poll() is not None, what="the client's end", timeout_s=START_S_MAX
    )
    scene.children.stop(consumer)
    return daemon


def _run(scene: Scene) -> UndecidedResult:
    config = scene.config
    start_warm(scene)
    watched = replace(config, messages=config.messages + 1)  # the first one too
    consumer = scene.start("consumer", "consumer", watched)
    client = scene.start_module("client", "benchmarks.undecided_client")
    timeout_ms = scene.await_fact(client, "timeout_ms", timeout_s=START_S_MAX)["timeout_ms"]
    scene.say("waiting for the first check")
    go_on(client)
    first = scene.await_fact(client, "first_check_s", timeout_s=_STORE_S_MAX)
    scene.say(f"{config.messages} transactions that nobody decides")
    stored = scene.await_fact(client, "stored_ns", timeout_s=_STORE_S_MAX)
    scene.await_seen(consumer, "measured", watched.messages)
    go_on(client)
    asked = scene.await_fact(client, "asked", timeout_s=START_S_MAX)
    scene.children.stop(consumer)
    seen = facts(consumer)[-1]
    due_ns = stored["stored_ns"] + timeout_ms * NS_PER_MS
    return UndecidedResult(
        undecided=config.messages,
        first_check_s=first["first_check_s"],
        delivered_s=(seen["last_ns"] - due_ns) / NS_PER_S,
        checks_per_s=per_second(asked["asked"], asked["first_asked_ns"], asked["last_asked_ns"]),
        lost=watched.messages - seen["measured"],
        duplicates=seen["duplicates"],
    )
