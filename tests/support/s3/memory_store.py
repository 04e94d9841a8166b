"""An S3 store in memory, which a test makes to check early and write late."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.waiting import sleep_through

LATE_SECONDS = 0.02


class MemoryStore:
    """Holds objects by path. It takes any credentials.

    checks_early: whether a conditional PUT of an object looks for it first, and replaces it a moment later. If not,
    look and write are one step.
    """

    def __init__(self, checks_early: bool) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts = 0
        self._checks_early = checks_early
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator["MemoryStore"]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        yield self
        self._server.shutdown()
        thread.join()
        self._server.server_close()

    def put(self, path: str, content: bytes, only_new: bool) -> bool:
        """Returns whether it was written."""
        if only_new and self._checks_early:
            if path in self.objects:
                return False
            sleep_through(LATE_SECONDS)
        with self._lock:
            self.puts += 1
            if only_new and not self._checks_early and path in self.objects:
                return False
            self.objects[path] = content
            return True

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                is_written = store.put(self.path, content, self.headers.get("If-None-Match") == "*")
                self._answer(200 if is_written else 412)

            def do_POST(self) -> None:
                """Deletes objects, which is all that clients of the tests post."""
                bucket = self.path.partition("?")[0]
                keys = re.findall("<Key>(.*?)</Key>", self.rfile.read(int(self.headers["Content-Length"])).decode())
                for key in keys:
                    del store.objects[f"{bucket}/{key}"]
                deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>")

            def _answer(self, status: int, text: str = "") -> None:
                self.send_response_only(status)
                self.send_header("ETag", '"1"')
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler
