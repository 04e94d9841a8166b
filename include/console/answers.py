"""The answers of the console: one page as HTML, with an ETag, and headers that let nothing from a payload run."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from include.console import runbooks, words
from include.console.viewer import Viewer

HERE = Path(__file__).parent
STATIC = HERE / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
YEAR_SECONDS = 31_536_000

templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters.update(words.FILTERS, json=json.dumps, markdown=runbooks.markdown)


def static_version() -> str:
    """Changes with the static files, so that a browser may keep them for a year."""
    contents = b"".join(file.read_bytes() for file in sorted(STATIC.iterdir()) if file.suffix in TYPES)
    return hashlib.sha256(contents).hexdigest()[:12]


VERSION = static_version()


def page(
    request: Request, template: str, viewer: Viewer, tag: str | None = None, status: int = 200, **values: Any
) -> Response:
    """The page, or 304 if the browser has it. tag: its ETag; None: made of its text."""
    body = html(template, root=root(request), viewer=viewer, **values)
    tag = tag or etag(body)
    if status == 200 and is_known(request, tag):
        return not_modified(tag)
    return HTMLResponse(body, status, {"ETag": tag, "Cache-Control": "private, no-cache"})


def html(template: str, **values: Any) -> str:
    return templates.get_template(template).render(version=VERSION, **values)


def is_known(request: Request, tag: str) -> bool:
    return request.headers.get("if-none-match") == tag


def not_modified(tag: str) -> Response:
    return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "private, no-cache"})


def etag(text: str) -> str:
    # Weak: the same page is sent with and without compression.
    return f'W/"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def root(request: Request) -> str:
    """The way from the page back to the board, so that links work below any base path."""
    return "../" * (request.scope["route"].path.count("/") - 1) or "./"


def static(name: str) -> Response | None:
    """A vendored or own static file; None for any other name."""
    file = STATIC / name
    if file.parent != STATIC or file.suffix not in TYPES or not file.is_file():
        return None
    caching = {"Cache-Control": f"private, max-age={YEAR_SECONDS}, immutable"}
    return Response(file.read_bytes(), media_type=TYPES[file.suffix], headers=caching)


async def with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Adds the headers of every answer, errors included."""
    answer = await call_next(request)
    answer.headers.update(HEADERS)
    return answer
