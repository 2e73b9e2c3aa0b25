"""The figures of a suite as a table for people. Pure: reads the JSON of the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.sizing import sizing_lines
from halfbridge.bench.result import cpu_text, latency_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAME_CHARS = 26  # the longest name of a row
# Runnable processes a core, before anything was started: others take part of the figures away.
_BUSY_LOAD = 0.5

Json = dict[str, Any]


def report(found: Json) -> str:
    lines = list(_lines(found["rows"]))
    if needed := found.get("sizing"):
        lines += sizing_lines(needed)
    width = max(_NAME_CHARS, *(len(name) + 2 for name, _ in lines))
    loads = " then ".join(
        "/".join(f"{each:g}" for each in found[when]) for when in ("load_before", "load_after")
    )
    return "\n".join(
        [
            *(f"{name:<{width}}{figures}".rstrip() for name, figures in lines),
            "",
            *_busy(found, width),
            f"{'machine':<{width}}{machine_line(found['machine'])}",
            f"{'began':<{width}}{found['began']}, load averages {loads}",
            f"{'command':<{width}}{found['command']}",
        ]
    )


def _busy(found: Json, width: int) -> Iterator[str]:
    load, cores = found["load_before"][0], found["machine"]["cores"]
    if load > cores * _BUSY_LOAD:
        yield f"{'NOT QUIET':<{width}}load {load:g} on {cores} cores before the first row"


def machine_line(machine: Mapping[str, object]) -> str:
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']:g} GiB,"
        f" {machine['system']}, Python {machine['python']}"
    )


def row_lines(name: str, found: Json) -> Iterator[tuple[str, str]]:
    if "first_check_s" in found:
        yield from _undecided_lines(found)
    elif "worker_percent" in found:
        broker = found["broker_percent"]
        beside = "" if broker is None else f", its broker {broker:g} %"
        yield "idle worker", f"{found['worker_percent']:g} % of a core{beside}"
    elif "rebuild_s" in found:
        yield _rebuild_line(found)
    else:
        yield name, _run_figures(found)
        if name == "pipelined":
            yield "worker's peak memory", f"{found['checker']['rss_mb_max']:.0f} MiB"


def _lines(rows: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for name, found in rows.items():
        yield from row_lines(name, found)
    lost = sum(found.get("lost", 0) for found in rows.values())
    duplicates = sum(found.get("duplicates", 0) for found in rows.values())
    yield "lost, duplicates", f"{lost}, {duplicates}"


def _run_figures(found: Json) -> str:
    config, parts = found["config"], []
    if config["rate"]:
        parts.append(latency_text(found["latency_ms"]))
        if found["plain_latency_ms"]:
            parts.append(f"plain {latency_text(found['plain_latency_ms'])}")
            parts.append(f"ratio of p50 {found['latency_ratio_to_plain']:.1f}")
    else:
        parts.append(f"{found['transactions_per_s']:,.0f}/s")
        if config["threads"]:
            parts.append(f"visible after {latency_text(found['latency_ms'])}")
        if found["ratio_to_plain"]:
            plain = f"{found['plain_produce_per_s']:,.0f}/s"
            parts.append(f"plain {plain}: ratio {found['ratio_to_plain']:.3f}")
    parts.append(cpu_text(found["cpu_us_per_tx"]))
    return "; ".join(parts)


def _undecided_lines(found: Json) -> Iterator[tuple[str, str]]:
    yield "first check", f"{found['first_check_s']:.2f} s"
    delivered = f"all delivered {found['delivered_s']:.2f} s after the last fell due"
    yield f"{found['undecided']:,} undecided", f"{delivered}; {found['checks_per_s']:,.0f} checks/s"


def _rebuild_line(found: Json) -> tuple[str, str]:
    ready = f"ready after {found['rebuild_s']:.1f} s, {found['cpu_s']:.1f} s of processor time"
    memory = f"{found['rss_mb_max']:.0f} MiB at most"
    return f"restart, {found['undecided']:,} undecided", f"{ready}, {memory}"
