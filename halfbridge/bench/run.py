"""One bench run: starts the processes, warms them up, measures, and ends all processes."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from halfbridge.bench.result import BenchResult, Latency, per_second
from halfbridge.bench.scene import (
    START_S_MAX,
    facts,
    go_on,
    open_brokers,
    open_scene,
    plain_latency_topic,
)
from halfbridge.testkit.children import Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bench.load import BenchConfig
    from halfbridge.bench.scene import Brokers, Scene

_PLAIN_S_MAX = 120.0  # a run that takes longer has failed
_PLAIN_RATE = 200.0  # of the latency of plain records, where the run has no rate of its own
# Beyond this rate a record waits for the processor, not for the brokers.
_PLAIN_RATE_MAX = 2_000.0
_PLAIN_LATENCY_S = 5.0  # 1,000 records at _PLAIN_RATE: ten behind the 99th percentile


def run_bench(config: BenchConfig, *, say: Callable[[str], None]) -> BenchResult:
    """Run one bench, and return its figures. Its processes and topics are removed.

    Without bootstrap_servers a broker is started.

    Raises:
        ChildFailedError: a process ended by itself; the user acts on its last output, which is in
            the message.
        InterruptedRunError: SIGINT, SIGTERM or SIGHUP was received; the user runs it again.
        BridgeError: The given cluster cannot be used; the operator must act.
    """
    with Interrupts() as interrupts, open_brokers(config.bootstrap_servers, say=say) as brokers:
        return measure(config, brokers, interrupts=interrupts, say=say)


def measure(
    config: BenchConfig, brokers: Brokers, *, interrupts: Interrupts, say: Callable[[str], None]
) -> BenchResult:
    """Return the figures of one run on brokers that run already; raises as `run_bench`."""
    with open_scene(config, brokers, interrupts=interrupts, say=say) as scene:
        return measure_in(scene)


def measure_in(scene: Scene) -> BenchResult:
    """Return the figures of one run in a scene."""
    config = scene.config
    daemon = scene.start_daemon()
    consumer = scene.start("consumer", "consumer")
    client = scene.start("client", "client")
    scene.warm_up(consumer, client, daemon)
    plain_latency = _plain_latency(scene) if config.has_plain_latency else None
    plain = _plain_rates(scene, "before")
    scene.say(f"measuring {config.messages} transactions")
    before = scene.used(client, daemon)
    go_on(client)
    done = scene.await_fact(client, "committed", timeout_s=scene.time_s_max())
    if scene.await_seen(consumer, "measured", done["committed"]) < done["committed"]:
        scene.say(f"not every message arrived; the checker's last output:\n{daemon.last_words()}")
    used = scene.used(client, daemon).since(before)
    go_on(client)
    plain += _plain_rates(scene, "after")
    scene.children.stop(consumer)
    seen = facts(consumer)[-1]
    return BenchResult(
        transactions_per_s=per_second(seen["measured"], done["first_send_ns"], seen["last_ns"]),
        latency=Latency(**seen["latency"]),
        lost=max(0, config.messages - seen["measured"]),
        duplicates=seen["duplicates"],
        plain_produce_per_s=fmean(plain) if plain else None,
        plain_latency=plain_latency,
        transactions=done["committed"] + done["lead"],
        client=used.client,
        checker=used.checker,
        broker=used.broker,
        config=config,
    )


def _plain_rates(scene: Scene, when: str) -> list[float]:
    """Return the rate of a plain producer, if the rate is wanted."""
    if not scene.config.has_plain_rate:
        return []
    scene.say(f"measuring plain produce ({when})")
    plain = scene.start(f"plain-{when}", "plain-rate")
    per_s: float = scene.await_fact(plain, "per_s", timeout_s=_PLAIN_S_MAX)["per_s"]
    scene.children.stop(plain)
    return [per_s]


def _plain_latency(scene: Scene) -> Latency:
    """Return the latency of plain records: the measured run's consumer, a plain producer."""
    rate = min(scene.config.rate or _PLAIN_RATE, _PLAIN_RATE_MAX)
    config = replace(
        scene.config,
        rate=rate,
        messages=int(rate * _PLAIN_LATENCY_S),
        real_topic=plain_latency_topic(scene.config),
    )
    scene.say(f"measuring plain records at {rate:g}/s")
    consumer = scene.start("plain-consumer", "consumer", config)
    producer = scene.start("plain-latency", "plain-latency", config)
    scene.await_fact(producer, "acknowledged", timeout_s=_PLAIN_S_MAX)
    scene.await_seen(consumer, "measured", config.messages)
    scene.children.stop(consumer)
    scene.children.stop(producer, timeout_s=START_S_MAX)
    return Latency(**facts(consumer)[-1]["latency"])
