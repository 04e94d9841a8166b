"""Walks through the console of the running platform as a person would, and takes its screenshots: make console-tour

It signs in by Airflow's form, looks at each page in two widths, restarts a flow without a mouse, kills the driver
`main` by its process id, and waits until the board shows that, and shows it running again. Then it replays a
quarantine, and approves a rewind. Each run in Airflow must be of the user who signed in. It fails on a violation of the
page's policy, and on findings of axe-core that are serious, if AXE names its file (`npm install axe-core`). Needs
Chromium, as docs/screenshot.py does. TOUR=look,keyboard takes these parts alone.
"""

import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from sqlalchemy import Engine

from docs.screenshot import OPTIONS, find_browser, sign_in
from include.control.flows import incidents
from include.control.leases import lease
from include.control.store import database
from include.errors import SetupError, report
from include.local import environment
from include.local.airflow import Airflow
from include.monitoring import snapshot
from include.settings import ROOT, settings

IMAGES = ROOT / "docs" / "images"
SIZES = {"console": (1280, 800), "console-small": (390, 844)}
PLACES = ("", "incidents", "graph", "tables", "jobs", "cost", "audit")
DRIVER, REWOUND = "main", "gold.daily_balance"
REASON = "a walk through the console"
# A run of the supervisor notices the death within a minute, and a driver takes its time to start.
PATIENCE_MS = 600_000
MOST_TABS = 200
WORST = "critical", "serious"


def main() -> None:
    browser_path, airflow = find_browser()
    engine = database.connect(settings().control_url)
    violations: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=OPTIONS)

        def sign_in_at(width: int, height: int) -> Page:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
            page = context.new_page()
            page.on("console", lambda message: _note(violations, message.text))
            sign_in(page, airflow)
            return page

        parts = os.environ.get("TOUR", ",".join(PARTS)).split(",")
        if "look" in parts:
            for name, size in SIZES.items():
                _look(sign_in_at(*size), airflow.url, engine, name)
        page = sign_in_at(*SIZES["console"])
        for name in parts:
            if walk := PARTS.get(name):
                walk(page, airflow, engine)
        browser.close()
    if violations:
        raise SetupError(f"the console violates its own policy: {violations[0]}")


def _note(violations: list[str], message: str) -> None:
    if "Content Security Policy" in message:
        violations.append(message)


def _look(page: Page, url: str, engine: Engine, name: str) -> None:
    page.goto(f"{url}/plugin/sluice")
    frame = page.frame_locator("iframe")
    frame.get_by_text("As of").wait_for(timeout=PATIENCE_MS)
    page.wait_for_load_state("networkidle")
    file = IMAGES / f"{name}.png"
    page.screenshot(path=file)
    print(f"{file.relative_to(ROOT)}: {frame.locator('.summary').inner_text()}")
    newest = _newest(engine)
    for place in (*PLACES, f"flow/{newest.flows[0].flow}", f"table/{newest.tables[0].table}"):
        page.goto(f"{url}/sluice/{place}")
        page.wait_for_load_state("load")
        too_wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if too_wide > 0:
            raise SetupError(f"page '{place}' is {too_wide} pixels wider than the screen")
        if script := os.environ.get("AXE"):
            page.evaluate(Path(script).read_text())
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            serious = [finding["id"] for finding in found if finding["impact"] in WORST]
            print(f"  {place or 'board'}: {len(found)} findings of axe-core, {len(serious)} serious")
            if serious:
                raise SetupError(f"page '{place}' breaks rules of axe-core: {', '.join(serious)}")


def _restart_by_keyboard(page: Page, airflow: Airflow, engine: Engine) -> None:
    page.goto(f"{airflow.url}/sluice/")
    page.locator("tbody a").first.wait_for(timeout=PATIENCE_MS)
    _tab_to(page, "document.activeElement.pathname?.includes('/flow/')")
    page.keyboard.press("Enter")
    page.wait_for_url("**/flow/**")
    _tab_to(page, "document.activeElement.dataset.action === 'restart'")
    page.keyboard.press("Enter")
    page.keyboard.type(REASON)
    page.keyboard.press("Enter")
    page.get_by_text("see the run").wait_for(timeout=PATIENCE_MS)
    _tab_to(page, "document.activeElement.dataset.airflow")
    page.keyboard.press("Enter")
    _require_own_run(page, airflow, "control.stream")


def _tab_to(page: Page, condition: str) -> None:
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if page.evaluate(condition):
            return
    raise SetupError(f"{MOST_TABS} presses of Tab on {page.url} do not lead to where {condition}")


def _kill_driver(page: Page, airflow: Airflow, engine: Engine) -> None:
    page.goto(f"{airflow.url}/sluice/?driver={DRIVER}")
    page.locator("tr.good").first.wait_for(timeout=PATIENCE_MS)
    holder = _holder(engine)
    for process in (holder.jvm, holder.python):
        os.kill(process.pid, signal.SIGKILL)
    killed_at = time.time()
    print(f"driver {DRIVER} killed, processes {holder.jvm.pid} and {holder.python.pid}")
    page.locator("tr.bad").first.wait_for(timeout=PATIENCE_MS)
    red_at = time.time()
    with database.reading(engine) as connection:
        known_at = max(incident.began_at for incident in incidents.all_open(connection) if incident.driver == DRIVER)
    print(f"red {red_at - killed_at:.1f} s after that, and {red_at - known_at:.1f} s after the supervisor knew")
    print(f"the board says: {page.locator('.summary').inner_text()}")
    page.locator("tr.good").first.wait_for(timeout=PATIENCE_MS)
    print(f"{page.locator('tr.good a').first.inner_text()} is HEALTHY again after {time.time() - killed_at:.0f} s")


def _replay(page: Page, airflow: Airflow, engine: Engine) -> None:
    for table in _newest(engine).tables:
        page.goto(f"{airflow.url}/sluice/table/{table.table}")
        button = page.locator("button[data-action=replay]").first
        if table.quarantined and button.count():
            _press(page, button.click)
            page.get_by_text("see the run").click()
            return _require_own_run(page, airflow, "replay")
    raise SetupError("no table has quarantined rows that can be replayed: wait until the demo has some")


def _approve_rewind(page: Page, airflow: Airflow, engine: Engine) -> None:
    moment = (datetime.now(UTC) - timedelta(minutes=3)).isoformat()
    form = {"table": REWOUND, "to": moment, "reason": REASON}
    status, run = airflow.call("POST", "/api/v2/dags/rewind/dagRuns", {"logical_date": None, "conf": form})
    if status != 200:
        raise SetupError(f"no rewind was triggered: {run}")
    page.goto(f"{airflow.url}/sluice/jobs")
    approve = page.get_by_role("button", name="Approve").first
    approve.wait_for(timeout=PATIENCE_MS)
    print(f"asked: {page.locator('article h3').first.inner_text()}")
    _press(page, approve.click)
    page.get_by_text("Answered").wait_for(timeout=PATIENCE_MS)
    _wait_for_run(airflow, "rewind", run["dag_run_id"])


def _press(page: Page, click: Callable[[], Any]) -> None:
    click()
    page.get_by_label("Reason").fill(REASON)
    page.get_by_role("button", name="Request").click()


def _require_own_run(page: Page, airflow: Airflow, dag: str) -> None:
    """The page is that of a run, and the run is of the user who has signed in, and succeeds."""
    page.wait_for_url(f"**/dags/{dag}/runs/**")
    page.get_by_text(REASON).first.wait_for(timeout=PATIENCE_MS)
    _wait_for_run(airflow, dag, page.url.rpartition("/runs/")[2])


def _wait_for_run(airflow: Airflow, dag: str, run_id: str) -> None:
    until = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < until:
        _, run = airflow.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run_id}")
        if run.get("state") in ("success", "failed"):
            break
        time.sleep(2)
    print(f"run {run_id} of {dag}, by {run.get('triggering_user_name')}: {run.get('state')}")
    if (run.get("state"), run.get("triggering_user_name")) != ("success", environment.USER):
        raise SetupError(f"run {run_id} of {dag} did not succeed, or is not of {environment.USER}: {run}")


def _newest(engine: Engine) -> snapshot.Snapshot:
    newest = snapshot.newest(engine)
    if newest is None or not newest.flows:
        raise SetupError("the supervisor has not stored a snapshot yet: wait a minute")
    return newest


def _holder(engine: Engine) -> lease.Holder:
    with database.reading(engine) as connection:
        held = lease.alive(connection).get(lease.driver_lease(DRIVER))
    if held is None:
        raise SetupError(f"driver {DRIVER} does not run: start the platform with make up")
    return held


PARTS: dict[str, Callable[[Page, Airflow, Engine], None] | None] = {
    "look": None,
    "keyboard": _restart_by_keyboard,
    "kill": _kill_driver,
    "replay": _replay,
    "rewind": _approve_rewind,
}


if __name__ == "__main__":
    report(main)
