"""A local HTTP server that receives messages in place of a chat webhook."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """messages: all accepted messages. headers: of the newest message. status: the HTTP status of answers.

    refused_text: the server answers 400 to messages with this text. port: stays the same after a restart.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.status = 200
        self.refused_text: str | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                message = json.loads(body)
                status = 400 if receiver.refused_text and receiver.refused_text in message["text"] else receiver.status
                if status == 200:
                    receiver.messages.append(message)
                    receiver.headers = dict(self.headers)
                self.send_response(status)
                self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/abc"
