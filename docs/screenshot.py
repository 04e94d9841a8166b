"""Takes the screenshot of the page of the demo from the running platform: make screenshot

Needs Chromium, which Debian and Ubuntu install with `apt-get install chromium`.
"""

import shutil

from playwright.sync_api import Page, sync_playwright

from include.errors import SetupError, report
from include.local import environment
from include.local.airflow import Airflow
from include.local.processes import Platform
from include.settings import ROOT, settings

FILE = ROOT / "docs" / "images" / "airflow.png"
PAGE = "/dags/supervise"
SIZE = {"width": 1280, "height": 800}
# Root may not use Chromium's sandbox. The other options keep it from looking for servers outside this machine.
OPTIONS = [
    "--no-sandbox",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_browser() -> tuple[str, Airflow]:
    """The path of Chromium, and the running Airflow. Raises SetupError."""
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser_path is None:
        raise SetupError("chromium is not on PATH: install it, on Debian and Ubuntu with apt-get install chromium")
    airflow = Airflow(settings(), Platform(settings().home), {})
    if airflow.token() is None:
        raise SetupError(f"Airflow does not answer at {airflow.url}: start the platform with make up")
    return browser_path, airflow


def sign_in(page: Page, airflow: Airflow) -> None:
    """Sign in as a person does, by Airflow's form."""
    page.goto(airflow.url)
    page.locator("input[name=username]").fill(environment.USER)
    page.locator("input[name=password]").fill(environment.password(airflow.where))
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "/auth/login" not in url)


def main() -> None:
    browser_path, airflow = find_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=OPTIONS)
        context = browser.new_context(viewport=SIZE, color_scheme="light", timezone_id="UTC")
        page = context.new_page()
        sign_in(page, airflow)
        page.goto(airflow.url + PAGE)
        page.get_by_text("supervise").first.wait_for()
        page.wait_for_load_state("networkidle")
        FILE.parent.mkdir(exist_ok=True)
        page.screenshot(path=FILE)
        browser.close()
    print(FILE.relative_to(ROOT))


if __name__ == "__main__":
    report(main)
