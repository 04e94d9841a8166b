"""Today's code continues a home that the first release has written."""

import tarfile
from collections.abc import Callable

from include.checkpoints import checkpoint_files
from include.lake import locations
from include.settings import settings
from include.spec import Delta, Expect, Flow
from tests.conftest import ROOT

FLOW = Flow(
    name="silver.of_an_older_build",
    comment="numbers",
    source=Delta("bronze.of_an_older_build"),
    schema="number INT",
    transform=lambda rows: rows.select("number"),
    expect=[Expect("not too large", "number < 100", otherwise="quarantine")],
)


def test_a_flow_of_the_first_release_goes_on_where_its_checkpoint_stands(run_once: Callable, stored: Callable):
    with tarfile.open(ROOT / "tests" / "upgrades" / "home-1.tar.gz") as home:
        members = [member for member in home.getmembers() if member.name.startswith(("lake/", "checkpoints/"))]
        home.extractall(settings().home, members, filter="data")
    run_once(FLOW)
    assert sorted(row.number for row in stored(FLOW.name).collect()) == [1, 2, 3, 4]
    assert sorted(row.number for row in stored(FLOW.quarantine).collect()) == [100, 101, 102]
    checkpoints = locations.checkpoints(FLOW.flow)
    assert checkpoint_files.newest_generation(checkpoints) == 1
    assert checkpoint_files.last_committed(checkpoints / "1") == 2
    assert checkpoint_files.owner(checkpoints / "1")["first"] == 0
