"""The console without Airflow, on loopback and without buttons: `python -m include.console`."""

import getpass

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware

from include import logs
from include.console import app
from include.console.viewer import Viewer
from include.control.store import database
from include.settings import settings

HOST, PORT = "127.0.0.1", 8090


def main() -> None:
    reader = Viewer(getpass.getuser(), may_press=False)
    alone = app.create(lambda: reader, lambda: database.connect(settings().control_url))
    # A page of the internet must not read this one by a name of its own that leads to loopback.
    alone.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    logs.info(f"the console is at http://{HOST}:{PORT}")
    uvicorn.run(alone, host=HOST, port=PORT, log_level="warning")


if __name__ == "__main__":
    main()
