"""The dashboard and the alert rules of deploy/monitoring use metrics that exist, and the rules do what they say."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from include.catalog import Catalog
from include.monitoring import prometheus
from tests.conftest import ROOT

FOLDER = ROOT / "deploy" / "monitoring"


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> set[str]:
    return {family.name for family in prometheus.registry(Catalog({})).collect()}


@pytest.mark.parametrize("name", ["grafana-dashboard.json", "alerts.yaml", "alerts_test.yaml"])
def test_every_metric_that_is_asked_for_is_exported(name: str, exported: set[str]):
    used = set(re.findall(r"\bsluice_\w+", (FOLDER / name).read_text()))
    assert used
    assert used <= exported


def test_every_panel_of_the_dashboard_has_its_place_and_a_query():
    panels = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert all(target["expr"] for panel in panels for target in panel["targets"])


def test_every_runbook_of_an_alert_exists():
    runbooks = re.findall(r"runbook: (\S+)", (FOLDER / "alerts.yaml").read_text())
    assert len(runbooks) == (FOLDER / "alerts.yaml").read_text().count("alert: ")
    assert all(Path(ROOT / runbook).is_file() for runbook in runbooks)


def test_the_alert_rules_pass_their_own_tests():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: Debian has it in the package prometheus")
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        result = subprocess.run([promtool, *command], cwd=FOLDER, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stdout + result.stderr
