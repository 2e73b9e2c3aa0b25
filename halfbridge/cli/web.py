"""`halfbridge web`: the API and the web page, as a process of its own."""

from __future__ import annotations

import logging
from typing import Any

import click

from halfbridge.cli.options import load_settings, settings_options
from halfbridge.web.config import WebConfig

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command()
@settings_options(WebConfig)
def web(**values: Any) -> int:
    """Serve the API and the web page until SIGTERM or Ctrl-C.

    Without --admin-tokens the port must be a loopback address; everybody on this machine may then
    read, and nobody may change anything.
    """
    from halfbridge.web.server import serve  # noqa: PLC0415 (--help does not need it)

    config = load_settings(WebConfig, values)
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT)
    serve(config, on_ready=lambda url: click.echo(f"halfbridge web on {url}"))
    return 0
