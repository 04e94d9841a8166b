"""The model of what to buy: it grows with what it is for, gives back what was measured, and is what the page shows."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from benchmarks import cost, cost_plots, plots
from benchmarks.cost import Load
from include.errors import UsageError
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "operate" / "cost.md").read_text()
PARTS = cost.parts()
# What the page says of its figures.
ERROR = 0.25
SVG = "{http://www.w3.org/2000/svg}"
RATES = (0.01, 0.1, 1, 3, 10, 30, 100, 300, 1_000)


@pytest.mark.parametrize(("what", "measured", "modelled"), cost.checks(PARTS), ids=lambda value: str(value)[:40])
def test_what_was_measured_as_a_whole_comes_out_within_the_error_of_the_page(
    what: str, measured: float, modelled: float
):
    assert modelled == pytest.approx(measured, rel=ERROR)
    assert f"at most {ERROR:.0%}".replace("%", " %") in PAGE


@pytest.mark.parametrize("flows", [3, 30, 300, 1_000])
@pytest.mark.parametrize("interval", [2, 10, 60])
def test_more_megabytes_never_need_less(flows: int, interval: float):
    needs = [cost.need(Load(flows, megabytes, interval), PARTS) for megabytes in RATES]
    for before, after in zip(needs, needs[1:], strict=False):
        assert after.cores >= before.cores
        assert after.memory_gb >= before.memory_gb
        assert after.executors >= before.executors
        assert after.bronze_gb_a_day > before.bronze_gb_a_day
    assert needs[-1].cores > 2 * needs[0].cores


@pytest.mark.parametrize("interval", [2, 10, 60])
def test_more_flows_never_need_less_while_their_batches_are_small(interval: float):
    needs = [cost.need(Load(flows, 0.1, interval), PARTS) for flows in (3, 9, 30, 100, 300, 1_000)]
    for before, after in zip(needs, needs[1:], strict=False):
        assert after.cores > before.cores
        assert after.memory_gb > before.memory_gb
        assert after.drivers >= before.drivers
        assert after.usd_a_month > before.usd_a_month


def test_a_longer_interval_saves_requests_and_cores_of_small_batches():
    often, seldom = (cost.need(Load(30, 1, interval), PARTS) for interval in (2, 20))
    assert often.cores > 3 * seldom.cores
    assert often.requests_a_month > 5 * seldom.requests_a_month


def test_flows_without_a_record_in_every_interval_have_fewer_batches():
    assert Load(300, 0.001).batches_a_minute == pytest.approx(3)
    assert Load(300, 1).batches_a_minute == 30


def test_every_measured_part_has_an_effect():
    load = Load(1_000, 1_000, 60)
    before = cost.need(load, PARTS)
    for name in ("idle_cpu_a_minute", "idle_cpu_a_minute_a_flow"):
        assert cost.need(load, replace(PARTS, **{name: 100 * getattr(PARTS, name)})).cores > before.cores
    for name in ("driver_mb", "driver_mb_a_flow"):
        assert cost.need(load, replace(PARTS, **{name: 100 * getattr(PARTS, name)})).memory_gb > before.memory_gb
    dearer = {layer: 2 * seconds for layer, seconds in PARTS.wide_batch.items()}
    assert cost.need(load, replace(PARTS, wide_batch=dearer)).cores > before.cores
    small = Load(9, 0.01)
    dearer = {layer: 2 * seconds for layer, seconds in PARTS.batch.items()}
    assert cost.need(small, replace(PARTS, batch=dearer)).cores > cost.need(small, PARTS).cores


def test_executors_are_those_that_the_supervisor_would_choose():
    """Of 20 million records a second and core-seconds of 28 for a million, at 70 % of the time."""
    load = Load(3, 1_000, 60)
    wide = frozenset(cost.LAYERS)
    assert cost.executors_needed(load, PARTS, wide) == pytest.approx(load.records_a_second / 1e6 * 28 / 0.7)
    it = cost.need(load, PARTS)
    assert it.executors >= 200
    assert it.executors % it.drivers == 0


def test_one_machine_does_until_it_is_full():
    assert cost.need(Load(30, 1), PARTS).executors == 0
    assert cost.need(Load(30, 100), PARTS).executors > 0


def test_a_figure_that_is_missing_is_named():
    with pytest.raises(UsageError, match="has no row 'of nothing': run its benchmark"):
        cost.figures("of nothing")


def test_the_command_prints_the_tables_of_the_page():
    command = [sys.executable, "-m", "benchmarks.cost"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(cost.TYPICAL) + len(cost.checks(PARTS))
    assert [row for row in rows if row not in PAGE] == []


def test_flows_without_megabytes_are_refused():
    command = [sys.executable, "-m", "benchmarks.cost", "--flows", "3"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "--flows and --megabytes belong together" in result.stderr


@pytest.mark.parametrize("name", cost_plots.PLOTS)
def test_a_plot_is_drawn_from_the_model_and_is_on_the_page(name: str):
    drawn = (plots.FOLDER / f"{name}.svg").read_text()
    assert drawn == cost_plots.svg(cost_plots.PLOTS[name], PARTS), "python -m benchmarks.cost_plots draws it"
    assert f"(../images/plots/{name}.svg)" in PAGE


@pytest.mark.parametrize("name", cost_plots.PLOTS)
def test_a_curve_stays_between_its_axes_and_has_its_label(name: str):
    plot = cost_plots.PLOTS[name]
    drawn = ElementTree.fromstring(cost_plots.svg(plot, PARTS))
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert set(plot.labels) < set(texts)
    curves = [path.attrib for path in drawn.iter(f"{SVG}path") if "fill" in path.attrib]
    solid = [curve for curve in curves if "stroke-dasharray" not in curve]
    assert len(solid) == sum(measured > plot.x_range[0] for measured in plot.measured_to.values())
    assert len(curves) == len(solid) + len(plot.labels)
    places = sorted(float(text.attrib["y"]) for text in drawn.iter(f"{SVG}text") if text.text in plot.labels)
    assert all(below - above >= cost_plots.LABEL_HEIGHT - 1 for above, below in zip(places, places[1:], strict=False))
    for curve in curves:
        points = [tuple(map(float, point.split())) for point in re.split("[ML]", curve["d"])[1:]]
        assert all(cost_plots.LEFT <= x <= cost_plots.RIGHT for x, _ in points)
        assert all(cost_plots.TOP <= y <= cost_plots.BOTTOM for _, y in points)
