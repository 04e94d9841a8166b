"""The console: pages about flows, tables and incidents, rendered on the server from the control database alone.

One dependency guards every route, files and unknown paths included. No route changes anything: a button asks Airflow's
own API as the signed-in user.
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Engine
from starlette.middleware.gzip import GZipMiddleware

from include.console import airflow_tabs, answers, cost_page, flow_page, graph_page, pages, table_page
from include.console.readings import Readings
from include.console.viewer import Viewer
from include.errors import SluiceError, UsageError


def create(guard: Callable[..., Viewer], engine: Callable[[], Engine]) -> FastAPI:
    """guard: a dependency of FastAPI, which raises HTTPException 401 for a stranger, and 403 without the right."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, dependencies=[Depends(guard)])
    app.middleware("http")(answers.with_headers)
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=6)
    app.exception_handler(SluiceError)(_in_one_sentence)
    _add_routes(app, guard, Readings(engine))
    return app


def _in_one_sentence(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, UsageError) else 503
    return answers.page(request, "error.html", Viewer("", False), status=status, here=None, sentence=str(error))


def _add_routes(app: FastAPI, guard: Callable[..., Viewer], readings: Readings) -> None:
    viewer = Annotated[Viewer, Depends(guard)]

    def add(path: str, template: str, build: Callable[..., dict[str, Any]], is_of_snapshot: bool = False) -> None:
        """is_of_snapshot: the page shows the newest snapshot alone, so that its time tells whether it has changed."""

        def route(request: Request, who: viewer) -> Response:
            if is_of_snapshot:
                tag = answers.etag(f"{readings.stamp()} {request.url} {who} {answers.VERSION}")
                if answers.is_known(request, tag):
                    return answers.not_modified(tag)
            else:
                tag = None
            values = build(readings, request.query_params, **request.path_params)
            return answers.page(request, template, who, tag, **values)

        app.get(path)(route)

    add("/", "board.html", pages.board, is_of_snapshot=True)
    add("/flow/{name}", "flow.html", flow_page.flow)
    add("/tables", "tables.html", table_page.tables, is_of_snapshot=True)
    add("/table/{name}", "table.html", table_page.table)
    add("/graph", "graph.html", graph_page.graph, is_of_snapshot=True)
    add("/incidents", "incidents.html", pages.incidents)
    add("/jobs", "jobs.html", pages.jobs)
    add("/cost", "cost.html", cost_page.cost)
    add("/audit", "audit.html", pages.audit)

    def tab(request: Request, who: viewer, dag: str, run: str | None = None) -> Response:
        """Leads from a tab of Airflow to the page that belongs there."""
        place = airflow_tabs.place(readings, dag, who.form(dag, run) if run else {})
        return RedirectResponse(answers.root(request) + place, headers={"Cache-Control": "no-store"})

    app.get("/dag/{dag}")(tab)
    app.get("/dag/{dag}/run/{run}")(tab)

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        found = answers.static(name)
        if found is None:
            raise HTTPException(404)
        return found

    @app.get("/{path:path}")
    def unknown(path: str) -> Response:
        raise HTTPException(404, f"no page of Sluice is at {path}")
