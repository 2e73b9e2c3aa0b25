"""`halfbridge web`: the API and the web page, as a process of its own."""

from __future__ import annotations

import click

from halfbridge.cli.options import load_settings, require, settings_options
from halfbridge.logs import log_to_stderr
from halfbridge.web.config import WebConfig


@click.command()
@settings_options(WebConfig)
def web(**values: object) -> int:
    """Serve the API and the web page until SIGTERM or Ctrl-C.

    Without --admin-tokens the port must be a loopback address; everybody on this machine may then
    read, and no changes are possible.
    """
    config = load_settings(WebConfig, values)
    require("the web server", "starlette", "uvicorn", "jinja2")
    from halfbridge.web.server import serve

    log_to_stderr("info", config.log_format)
    serve(config, on_ready=lambda url: click.echo(f"halfbridge web on {url}"))
    return 0
