"""An HTTP proxy in front of an S3 store, which a test makes to delay or refuse requests, or to lose answers."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Request:
    """path: with the query. if_none_match: that header, None without it. client: the name and version of the client."""

    method: str
    path: str
    if_none_match: str | None
    client: str = ""

    def puts(self, name: str) -> bool:
        """Whether it writes the object whose key ends with `name`."""
        return self.method == "PUT" and urlsplit(self.path).path.endswith(name)


@dataclass(frozen=True)
class Refusal:
    """An error of S3: its HTTP status and its code."""

    status: int
    code: str


SLOW_DOWN = Refusal(503, "SlowDown")
EXPIRED_TOKEN = Refusal(400, "ExpiredToken")


class StoreProxy:
    """Forwards requests unchanged, so that their signatures stay valid.

    requests: all that arrived. before: called with each request before it is forwarded; it may wait. refuses: the error
    that the client gets instead of the store's answer, if any. loses: whether the store gets the request, but the
    client no answer to it. store_host, store_port: of the store. address: where it listens; port 0 is a free one.
    """

    def __init__(
        self, store_port: int, store_host: str = "127.0.0.1", address: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        self.requests: list[Request] = []
        self.before: Callable[[Request], None] = lambda request: None
        self.refuses: Callable[[Request], Refusal | None] = lambda request: None
        self.loses: Callable[[Request], bool] = lambda request: False
        self._store = (store_host, store_port)
        self._server = ThreadingHTTPServer(address, self._handler())
        self._address = self._server.server_address
        self._is_away = False

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator["StoreProxy"]:
        """Forward requests during the block."""
        self._serve()
        try:
            yield self
        finally:
            self._close()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Refuse connections during the block, and end those that are open."""
        self._is_away = True
        self._close()
        try:
            yield
        finally:
            self._is_away = False
            self._server = ThreadingHTTPServer(self._address, self._handler())
            self._serve()

    def _serve(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def parse_request(self) -> bool:
                is_valid = super().parse_request()
                if is_valid:
                    # `getattr` by this name finds the one method for all of HTTP's.
                    setattr(self, f"do_{self.command}", self._forward)
                return is_valid

            def _forward(self) -> None:
                request = Request(
                    self.command, self.path, self.headers.get("If-None-Match"), self.headers.get("User-Agent", "")
                )
                proxy.requests.append(request)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.before(request)
                if refusal := proxy.refuses(request):
                    self._refuse(refusal)
                    return
                if proxy._is_away:
                    self.close_connection = True
                    return
                response, content = self._ask_store(body)
                if proxy.loses(request):
                    self.close_connection = True
                    return
                self.send_response_only(response.status, response.reason)
                for name, value in response.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                self.wfile.write(content)

            def _refuse(self, refusal: Refusal) -> None:
                body = f"<Error><Code>{refusal.code}</Code><Message>{refusal.code}</Message></Error>".encode()
                self.send_response_only(refusal.status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def _ask_store(self, body: bytes) -> tuple[HTTPResponse, bytes]:
                connection = HTTPConnection(*proxy._store)
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("connection", "expect"):
                        connection.putheader(name, value)
                connection.endheaders(body)
                response = connection.getresponse()
                content = response.read()
                connection.close()
                return response, content

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler
