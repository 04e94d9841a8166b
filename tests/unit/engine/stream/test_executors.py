"""A driver without a cluster has no executors to change. Those with one: tests/faults/platforms/test_executors.py."""

from sqlalchemy import Engine

from include.control.flows import sizing
from include.engine.stream import executors
from include.engine.stream.executors import Executors
from include.settings import settings


def test_a_driver_without_a_cluster_says_once_that_it_cannot_have_executors(spark, engine: Engine, caplog):
    sizing.declare(engine, {"main": (1, 3)})
    of_driver = Executors(spark, engine, "main")
    of_driver.turn(None)
    assert (of_driver.running, caplog.text) == (None, "")
    for size in (2, 2, 2):
        of_driver.turn(size)
    assert of_driver.running is None
    assert caplog.text.count("cannot have 2 executors, as its master is none of a cluster") == 1
    assert sizing.sizes(engine)["main"].running is None


def test_a_batch_is_known_by_the_executors_at_its_end_however_late_it_is_journaled(spark, engine: Engine, monkeypatch):
    of_driver, clock = Executors(spark, engine, "main"), iter([10.0, 20.0, 40.0, 50.0])
    monkeypatch.setattr(executors.time, "time", lambda: next(clock))
    monkeypatch.setattr(of_driver, "_conform", lambda size: setattr(of_driver, "running", size))
    for size in (1, 3, 3, 1, None):
        of_driver.turn(size)
    assert [of_driver.running_at(at) for at in (9, 10, 19, 20, 39, 40, 49, 50)] == [None, 1, 1, 3, 3, 1, 1, None]


def test_only_a_declared_driver_begins_with_settings_of_its_own(spark, own_settings):
    own_settings(SLUICE_EXECUTORS="main=1-3")
    assert executors.conf_of("other", None) == {}
    settings_of_main = {"spark.executor.cores": "1", "spark.cores.max": "3", "spark.executor.instances": "1"}
    assert executors.conf_of("main", None) == settings_of_main
    assert executors.conf_of("main", 2)["spark.executor.instances"] == "2"
    assert settings().executors == {"main": (1, 3)}
