"""Walks through the console of the running platform as a person would, and takes its screenshots: make console-tour

It signs in, kills the driver `main` by its process id, waits until the board shows that and shows it running again,
presses restart, and looks for the run in Airflow. It fails on a violation of the page's policy, and on findings of
axe-core that are serious, if AXE names its file (`npm install axe-core`). Needs Chromium, as docs/screenshot.py does.
"""

import os
import signal
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from sqlalchemy import Engine

from docs.screenshot import OPTIONS, signed_in
from include.control.leases import lease
from include.control.store import database
from include.errors import SetupError, report
from include.settings import ROOT, settings

IMAGES = ROOT / "docs" / "images"
SIZES = {"console": (1280, 800), "console-small": (390, 844)}
DRIVER = "main"
# A run of the supervisor notices the death within a minute, and a driver takes its time to start.
PATIENCE_MS = 600_000
WORST = "critical", "serious"


def main() -> None:
    browser_path, airflow, token = signed_in()
    violations: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=OPTIONS)
        for name, (width, height) in SIZES.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
            context.add_cookies([{"name": "_token", "value": token, "url": airflow.url}])
            page = context.new_page()
            page.on("console", lambda message: _note(violations, message.text))
            _look(page, airflow.url, IMAGES / f"{name}.png")
        _kill_and_restart(context.new_page(), airflow.url)
        browser.close()
    if violations:
        raise SetupError(f"the console violates its own policy: {violations[0]}")


def _note(violations: list[str], message: str) -> None:
    if "Content Security Policy" in message:
        violations.append(message)


def _look(page: Page, url: str, file: Path) -> None:
    page.goto(f"{url}/plugin/sluice")
    frame = page.frame_locator("iframe")
    frame.get_by_text("As of").wait_for(timeout=PATIENCE_MS)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file)
    print(f"{file.relative_to(ROOT)}: {frame.locator('.summary').inner_text()}")
    for place in ("", "incidents", "graph", "tables", "jobs", "audit"):
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


def _kill_and_restart(page: Page, url: str) -> None:
    page.goto(f"{url}/sluice/?driver={DRIVER}")
    holder = _holder(database.connect(settings().control_url))
    for process in (holder.jvm, holder.python):
        os.kill(process.pid, signal.SIGKILL)
    print(f"driver {DRIVER} killed, processes {holder.jvm.pid} and {holder.python.pid}")
    page.locator("tr.good").first.wait_for(state="detached", timeout=PATIENCE_MS)
    print(f"the board shows it: {page.locator('.summary').inner_text()}")
    healthy = page.locator("tr.good").first
    healthy.wait_for(timeout=PATIENCE_MS)
    flow = healthy.locator("a").inner_text()
    print(f"{flow} is HEALTHY again")
    page.goto(f"{url}/sluice/flow/{flow}")
    page.get_by_role("button", name=f"restart {flow}").click()
    page.get_by_label("Reason").fill("a walk through the console")
    page.get_by_role("button", name="Request").click()
    page.get_by_role("link", name="see the run").click()
    page.wait_for_url("**/dags/control.stream/runs/**")
    page.get_by_text("a walk through the console").first.wait_for(timeout=PATIENCE_MS)
    print(f"Airflow has the run: {page.url.removeprefix(url)}")


def _holder(engine: Engine) -> lease.Holder:
    with database.reading(engine) as connection:
        held = lease.alive(connection).get(lease.driver_lease(DRIVER))
    if held is None:
        raise SetupError(f"driver {DRIVER} does not run: start the platform with make up")
    return held


if __name__ == "__main__":
    report(main)
