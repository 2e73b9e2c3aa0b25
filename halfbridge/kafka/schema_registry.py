"""Schemas of a registry (Confluent's REST API and wire format), fetched by plain HTTP.

Commands and Spark's frames decode with them; the client's serializers bring a client of their own.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from halfbridge.kafka.errors import RetriableError

NO_PROTOBUF = "Protobuf is decoded after pip install protobuf"  # no extra brings it
HEAD = struct.Struct(">bI")  # a zero byte and the schema's id, in front of the encoded value
# Users wait for the answers: a registry that runs gives each within milliseconds.
ANSWER_S = 5.0
SCHEMA_BYTES_MAX = 1 << 20  # the largest record that a registry's own topic holds by default
SCHEMAS_MAX = 100  # 100 MiB at most; a command meets a few
VERSIONS_MAX = 50  # of a subject: each is a request, and a branch in Spark's plan
_SERIALIZED = "?format=serialized"  # of a Protobuf schema, where the registry has that form
_NOT_FOUND = 404  # RFC 9110: there is no such schema or subject


class SchemaRegistry:
    """The schemas of one registry; each is asked for once.

    User and password in the URL are sent as basic authentication.

    Raises:
        ValueError: when it is made: no URL of HTTP; the caller corrects it.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("wanted http://HOST:PORT, or https, as the schema registry's URL")
        place = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
        self._headers = {}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(user).decode()}"
        self._schemas: dict[int, dict[str, Any] | None] = {}

    def schema(self, number: int) -> dict[str, Any] | None:
        """Return the registry's answer about a schema's id; None: it has no such schema.

        Raises:
            RetriableError: the registry does not answer, or fails; repeat the call later.
        """
        if number not in self._schemas:
            if len(self._schemas) >= SCHEMAS_MAX:
                del self._schemas[next(iter(self._schemas))]
            found = self._asked(f"schemas/ids/{number}")
            self._schemas[number] = found if isinstance(found, dict) else None
        return self._schemas[number]

    def serialized(self, number: int) -> dict[str, Any] | None:
        """Return a schema as `schema` does, asked for in its serialized form; keeps none.

        Raises:
            RetriableError: as of `schema`; repeat the call later.
        """
        found = self._asked(f"schemas/ids/{number}{_SERIALIZED}")
        return found if isinstance(found, dict) else None

    def version(self, subject: str, version: int) -> dict[str, Any] | None:
        """Return one version of a subject, to which schemas refer, as `serialized` does.

        Raises:
            RetriableError: as of `schema`; repeat the call later.
        """
        found = self._asked(f"{_versions_of(subject)}/{version}{_SERIALIZED}")
        return found if isinstance(found, dict) else None

    def versions(self, subject: str) -> list[dict[str, Any]]:
        """Return the answers about the last VERSIONS_MAX versions of a subject, oldest first.

        Without such a subject there are none.

        Raises:
            RetriableError: as of `schema`; repeat the call later.
        """
        path = _versions_of(subject)
        numbers = self._asked(path)
        if not isinstance(numbers, list):
            return []
        wanted = sorted(int(each) for each in numbers)[-VERSIONS_MAX:]
        found = (self._asked(f"{path}/{version}") for version in wanted)
        return [each for each in found if isinstance(each, dict) and "id" in each]

    def _asked(self, path: str) -> Any:
        """Return an answer of JSON; None: there is no such thing."""
        request = urllib.request.Request(  # noqa: S310 (http or https, see above)
            f"{self._url}/{path}", headers=self._headers
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310 (as above)
                return json.loads(answer.read(SCHEMA_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NOT_FOUND:
                    return None
            raise RetriableError(f"the schema registry answers {error.code}") from error
        except (OSError, ValueError) as error:
            why = re.sub("^<urlopen error (.*)>$", r"\1", str(error))
            raise RetriableError(f"the schema registry does not answer: {why}") from error


def _versions_of(subject: str) -> str:
    return f"subjects/{quote(subject, safe='')}/versions"
