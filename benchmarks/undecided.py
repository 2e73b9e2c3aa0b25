"""Measures checks: the first one, and many transactions that fall due at about the same time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfbridge.bench.result import per_second
from halfbridge.bench.run import START_S_MAX, facts, go_on
from halfbridge.serde.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from halfbridge.bench.run import Scene
    from halfbridge.testkit.children import Child

_STORE_S_MAX = 300.0  # a run that takes longer has failed


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


def measure_undecided(scene: Scene) -> dict[str, float]:
    """Return what checks take, with a checker that answers COMMIT at once.

    `first_check_s` is the time from the acknowledged half message of the first transaction to its
    check; `delivered_s`, from when the last one fell due to when all were visible.
    """
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
    delivered_s = (seen["last_ns"] - due_ns) / NS_PER_S
    per_s = per_second(asked["asked"], asked["first_asked_ns"], asked["last_asked_ns"])
    return {
        "undecided": config.messages,
        "first_check_s": round(first["first_check_s"], 3),
        "delivered_s": round(delivered_s, 3),
        "checks_per_s": round(per_s, 3),
        "lost": watched.messages - seen["measured"],
        "duplicates": seen["duplicates"],
    }
