"""Settings of the HTTP server, as one frozen object that is validated once."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 (the loader asks for the hints)
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path  # noqa: TC003 (as above)
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from halfbridge.kafka.errors import ConfigError
from halfbridge.logs import LOG_FORMATS
from halfbridge.serde.settings import check, setting
from halfbridge.serde.topics import TopicNames

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig

DEFAULT_PORT = 9465  # the port after the daemon's metrics port, 9464
_PORT_MAX = 65535  # 16 bits of TCP
_METRICS_URLS_MAX = 64  # each is asked in every SAMPLE_S, and may take FETCH_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """Settings of `halfbridge web`: each is a flag, a HALFBRIDGE_ variable and a TOML key."""

    refusal = ConfigError

    bootstrap_servers: str = setting("localhost:9092", doc="Kafka brokers, host:port,host:port.")
    topic_prefix: str = setting("", doc="Prefix of all internal topics, groups and ids.")
    admin_port: int = setting(
        DEFAULT_PORT, doc="Port of the API and the web page.", minimum=1, maximum=_PORT_MAX
    )
    admin_host: str = setting("127.0.0.1", doc="Address of the admin port.")
    admin_tokens: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="File of bearer tokens, one 'ROLE TOKEN [NAME]' a line; roles: read, operate."
    )
    admin_cert: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="File of the TLS certificate chain, PEM."
    )
    admin_key: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="File of the TLS certificate's private key, PEM."
    )
    allow_changes: bool = setting(
        default=False, doc="Let the web page make changes, for who has the role operate."
    )
    key_file: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="TOML file: keys that sign records, and of whom signatures are demanded."
    )
    metrics_urls: tuple[str, ...] = setting(
        (), doc="Metrics port of a daemon, http://HOST:PORT; for the overview."
    )
    log_format: str = setting("text", words=LOG_FORMATS, doc="text, or json: one event a line.")
    kafka: Mapping[str, str] = setting(
        {}, doc="More Kafka client properties, such as security ones, name=value.", secret=True
    )

    def __post_init__(self) -> None:
        check(self)
        if (self.admin_cert is None) != (self.admin_key is None):
            missing = "admin_cert" if self.admin_cert is None else "admin_key"
            allowed = "a PEM file: --admin-cert and --admin-key belong together"
            raise _wrong(missing, "none", allowed)
        if self.admin_tokens is None and not is_loopback(self.admin_host):
            allowed = "a token file, since --admin-host is not a loopback address"
            raise _wrong("admin_tokens", "none", allowed)
        if self.admin_tokens is None and self.allow_changes:
            allowed = "a token file: --allow-changes needs to know who acts"
            raise _wrong("admin_tokens", "none", allowed)
        _check_urls(self.metrics_urls)

    @property
    def names(self) -> TopicNames:
        """Names of the installation's topics and groups."""
        return TopicNames(self.topic_prefix)


def is_loopback(host: str) -> bool:
    """Tell whether `host` names this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def beside(config: CheckerConfig) -> WebConfig:
    """Return the settings of the HTTP server of a daemon, which needs tokens."""
    if config.admin_tokens is None:
        raise _wrong("admin_tokens", "none", "a token file: --admin-port of a daemon needs one")
    if not config.metrics_port:
        raise _wrong("metrics_port", "0", "a port: the overview of --admin-port reads the metrics")
    shared = {each.name for each in fields(WebConfig)} - {"metrics_urls"}
    host = config.metrics_host
    reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 (compared only)
    host = f"[{reached}]" if ":" in reached else reached
    return WebConfig(
        metrics_urls=(f"http://{host}:{config.metrics_port}",),
        **{name: getattr(config, name) for name in shared},
    )


def _check_urls(urls: tuple[str, ...]) -> None:
    if len(urls) > _METRICS_URLS_MAX:
        raise _wrong("metrics_urls", f"{len(urls)} addresses", f"at most {_METRICS_URLS_MAX}")
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise _wrong("metrics_urls", repr(url), "http://HOST:PORT, without a path")


def _wrong(field: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(field=field, value=value, origin="the configuration", allowed=allowed)
