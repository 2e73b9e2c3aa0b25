"""The figures of a suite as a table for people. Pure: reads the JSON of the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.bench.sizing import sizing_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAME_CHARS = 26  # the longest name of a row
# Runnable processes a core, before anything was started: others take part of the figures away.
_BUSY_LOAD = 0.5

Json = dict[str, Any]


def report(found: Json) -> str:
    """Return the table of a suite's JSON, with where and when it was measured."""
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


def machine_line(machine: Mapping[str, Any]) -> str:
    """Return a machine's JSON in one line."""
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']:g} GiB,"
        f" {machine['system']}, Python {machine['python']}"
    )


def run_lines(found: Json) -> Iterator[tuple[str, str]]:
    """Yield the figures of one run, by their names."""
    config = found["config"]
    yield "transactions/s", f"{found['transactions_per_s']:,.0f}"
    yield "latency", _latency(found["latency_ms"])
    if found["plain_produce_per_s"]:
        plain = f"{found['plain_produce_per_s']:,.0f}, ratio {found['ratio_to_plain']:.3f}"
        yield "plain produce/s", plain
    if found["plain_latency_ms"]:
        yield "plain produce to read", _latency(found["plain_latency_ms"])
    if found["latency_ratio_to_plain"]:
        yield "p50 to plain p50", f"{found['latency_ratio_to_plain']:.1f}"
    yield "processor time", _cpu(found["cpu_us_per_tx"])
    for name in ("client", "checker", "broker"):
        if used := found[name]:
            peak = f"{used['rss_mb_max']:.0f} MiB at most"
            yield name, f"{used['cpu_s']:g} s of processor time, {peak}"
    yield "lost, duplicates", f"{found['lost']}, {found['duplicates']}"
    yield "config", " ".join(f"{k}={v}" for k, v in config.items() if k in _SHOWN)


_SHOWN = ("messages", "size_bytes", "workers", "rate", "threads", "warmup_s", "partitions")


def run_report(found: Json) -> str:
    """Return the table of one run's JSON."""
    return "\n".join(f"{name:<{_NAME_CHARS}}{figures}" for name, figures in run_lines(found))


def row_lines(name: str, found: Json) -> Iterator[tuple[str, str]]:
    """Yield the lines of one row of a suite: what it is, and its figures."""
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
        parts.append(_latency(found["latency_ms"]))
        if found["plain_latency_ms"]:
            parts.append(f"plain {_latency(found['plain_latency_ms'])}")
            parts.append(f"ratio of p50 {found['latency_ratio_to_plain']:.1f}")
    else:
        parts.append(f"{found['transactions_per_s']:,.0f}/s")
        if config["threads"]:
            parts.append(f"visible after {_latency(found['latency_ms'])}")
        if found["ratio_to_plain"]:
            plain = f"{found['plain_produce_per_s']:,.0f}/s"
            parts.append(f"plain {plain}: ratio {found['ratio_to_plain']:.3f}")
    parts.append(_cpu(found["cpu_us_per_tx"]))
    return "; ".join(parts)


def _undecided_lines(found: Json) -> Iterator[tuple[str, str]]:
    yield "first check", f"{found['first_check_s']:.2f} s"
    delivered = f"all delivered {found['delivered_s']:.2f} s after the last fell due"
    yield f"{found['undecided']:,} undecided", f"{delivered}; {found['checks_per_s']:,.0f} checks/s"


def _rebuild_line(found: Json) -> tuple[str, str]:
    ready = f"ready after {found['rebuild_s']:.1f} s, {found['cpu_s']:.1f} s of processor time"
    memory = f"{found['rss_mb_max']:.0f} MiB at most"
    return f"restart, {found['undecided']:,} undecided", f"{ready}, {memory}"


def _latency(found: Mapping[str, float]) -> str:
    return f"p50 {found['p50']:.1f}, p99 {found['p99']:.1f} ms"


def _cpu(found: Mapping[str, float | None]) -> str:
    said = ", ".join(f"{name} {us:.0f}" for name, us in found.items() if us is not None)
    return f"{said} us a transaction"
