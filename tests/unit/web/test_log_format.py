"""The log of the server's process."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress

from halfbridge.serde.settings import to_plain
from halfbridge.testkit.ports import free_ports
from halfbridge.web.config import WebConfig
from halfbridge.web.server import COMMAND

_END_S_MAX = 30.0


def test_every_line_is_json_where_the_daemon_logs_json() -> None:
    """Lines of the server and of uvicorn; each names the process."""
    (port,) = free_ports(1)
    config = WebConfig(bootstrap_servers="127.0.0.1:1", admin_port=port, log_format="json")
    server = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stderr is not None
    try:
        server.stdin.write(json.dumps(to_plain(config)).encode() + b"\n")
        server.stdin.flush()
        first = server.stderr.readline()
        server.stdin.close()  # the daemon is gone
        lines = [json.loads(line) for line in (first, *server.stderr)]
    finally:
        with suppress(subprocess.TimeoutExpired):
            server.wait(_END_S_MAX)
        server.kill()
        server.wait()
        server.stderr.close()
    assert any("the admin port answers" in line["message"] for line in lines)
    assert {line["worker"] for line in lines} == {"web"}
