"""`halfbridge bench` as a user runs it, with loads that are too small to say anything."""

import json
import subprocess
import sys

import pytest

from halfbridge.bench.run import open_brokers
from tests.kit.reading import reader_of

pytestmark = [pytest.mark.broker, pytest.mark.long]

_S_MAX = 240


def _bench(servers: str, *words: str) -> str:
    command = (sys.executable, "-m", "halfbridge", "bench", "--bootstrap-servers", servers)
    warmup = ("--warmup", "1")
    done = subprocess.run(
        [*command, *warmup, *words], capture_output=True, check=True, text=True, timeout=_S_MAX
    )
    return done.stdout


def _topics(servers: str) -> set[str]:
    reader = reader_of(servers, [], partitions=0)
    names = {name for name in reader.list_topics().topics if "bench" in name}
    reader.close()
    return names


@pytest.mark.parametrize("rate", [(), ("--rate", "100")], ids=["full speed", "on schedule"])
def test_an_asyncio_client(kafka_bootstrap_servers: str, rate: tuple[str, ...]) -> None:
    """Tasks that await: all messages arrive, once."""
    words = ("--messages", "200", "--tasks", "50", "--json")
    found = json.loads(_bench(kafka_bootstrap_servers, *words, *rate))
    assert (found["lost"], found["duplicates"]) == (0, 0)
    assert found["config"]["tasks"] == 50
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["max"]


def test_a_run_measures_itself_and_what_is_plain(kafka_bootstrap_servers: str) -> None:
    """Blocking threads: all arrives, baselines and CPU time are reported, topics are deleted."""
    servers = kafka_bootstrap_servers
    before = _topics(servers)
    words = ("--messages", "300", "--threads", "4", "--daemon-arguments", "--slot bench", "--json")
    found = json.loads(_bench(servers, *words))

    assert (found["lost"], found["duplicates"]) == (0, 0)
    assert found["transactions_per_s"] > 0
    assert found["plain_latency_ms"]["p50"] > 0
    assert 0 < found["ratio_to_plain"] < 1
    assert found["cpu_us_per_tx"]["client"] > 0
    assert found["cpu_us_per_tx"]["worker"] > 0
    assert found["config"]["daemon_arguments"] == ["--slot", "bench"]
    with open_brokers(servers, say=str) as brokers:
        assert (found["broker"] is None) is (brokers.pid is None)
    assert _topics(servers) == before
