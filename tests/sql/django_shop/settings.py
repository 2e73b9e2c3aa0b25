"""Settings of a small Django project; SHOP_URL is SQLAlchemy's address of its database."""

import json
import os
from typing import Any

import pymysql
from sqlalchemy import make_url

pymysql.install_as_MySQLdb()  # Django knows no other name
_ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mariadb": "mysql", "mysql": "mysql"}


def database_settings(url: str) -> dict[str, Any]:
    """Return Django's settings of a database of tests/sql/databases.py."""
    parsed = make_url(url)
    return {
        "ENGINE": f"django.db.backends.{_ENGINES[parsed.get_backend_name()]}",
        "NAME": parsed.database,
        "HOST": parsed.host or "",
        "PORT": str(parsed.port or ""),
        "USER": parsed.username or "",
        "OPTIONS": {} if parsed.host else {"timeout": 10},
    }


SECRET_KEY = "of tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
INSTALLED_APPS = ["halfbridge.django", "tests.sql.django_shop"]
ROOT_URLCONF = "tests.sql.django_shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": database_settings(os.environ.get("SHOP_URL", "sqlite:///unused.sqlite"))}
ORDERS_TOPIC = os.environ.get("SHOP_TOPIC", "orders")
HALFBRIDGE = json.loads(os.environ.get("SHOP_HALFBRIDGE", "{}"))
