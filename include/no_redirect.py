"""HTTP requests with credentials follow no redirect, which would send these to another host."""

import urllib.request
from typing import Any


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def opener() -> urllib.request.OpenerDirector:
    """Opens requests. A redirect is an HTTPError of its own status."""
    return urllib.request.build_opener(_NoRedirect)
