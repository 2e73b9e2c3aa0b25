"""A server of short-lived tokens, as OAuth clients ask for them, that can be out of order."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import Self

from halfbridge.testkit.ports import HOST
from tests.kit.http import answer_json
from tests.kit.oauth import token as new_token

_OUT_OF_ORDER = 503


class TokenServer:
    """Answers with tokens that nobody signed, which brokers for tests take. A context manager.

    Attributes:
        works: False while every request is refused.
        given: How many tokens it gave.
        refused: How many requests it refused.
    """

    def __init__(self, *, life_s: int) -> None:
        self.works = True
        self.given = 0
        self.refused = 0
        self._life_s = life_s
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                owner.answer(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        """Return where clients ask."""
        return f"http://{HOST}:{self._server.server_port}/token"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        if not self.works:
            self.refused += 1
            answer_json(request, _OUT_OF_ORDER, {})
            return
        self.given += 1
        text = new_token(life_s=self._life_s)
        token = {"access_token": text, "expires_in": self._life_s, "token_type": "Bearer"}
        answer_json(request, 200, token)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
