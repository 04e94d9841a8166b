"""A small schema registry with the part of Confluent's API that producers and readers of schemas use."""

import base64
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# How long it hangs.
MOST_SECONDS = 5


class SchemaRegistry:
    """asked: how often each id was asked for. login: `USER:PASSWORD` that it demands. answers: cleared, it hangs.

    port: stays the same after a restart.
    """

    def __init__(self, login: str | None = None) -> None:
        self.schemas: dict[int, str] = {}
        self.asked: Counter[int] = Counter()
        self.login = login
        self.answers = threading.Event()
        self.answers.set()
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def register(self, schema: dict[str, Any] | str, schema_id: int | None = None) -> int:
        """Adds a schema, and returns its id: the one that it has already, or the next."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        known = next((known_id for known_id, known_text in self.schemas.items() if known_text == text), None)
        schema_id = schema_id or known or max(self.schemas, default=0) + 1
        self.schemas[schema_id] = text
        return schema_id

    def start(self) -> None:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answers.wait(MOST_SECONDS)
                match = re.fullmatch(r"/schemas/ids/(\d+)", self.path)
                expected = registry.login and f"Basic {base64.b64encode(registry.login.encode()).decode()}"
                if expected and self.headers["Authorization"] != expected:
                    return self._answer(401, {"error_code": 401, "message": "Unauthorized"})
                if not match:
                    return self._answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"})
                schema_id = int(match[1])
                registry.asked[schema_id] += 1
                if schema_id not in registry.schemas:
                    return self._answer(404, {"error_code": 40403, "message": f"Schema {schema_id} not found"})
                return self._answer(200, {"schema": registry.schemas[schema_id], "references": []})

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
