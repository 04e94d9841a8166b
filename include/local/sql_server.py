"""The server through which other programs query the tables by name: `jobs/sql_server.py`, started by `make up`."""

from collections.abc import Callable

from include.local import install
from include.local.broker import HOST
from include.local.processes import Platform, StallTimer, wait_for_port
from include.settings import ROOT, Settings

NAME = "sql-server"


def ports(config: Settings) -> dict[str, int]:
    """The ports that are set, by setting."""
    declared = {"SLUICE_SQL_PORT": config.sql_port, "SLUICE_CONNECT_PORT": config.connect_port}
    return {setting: port for setting, port in declared.items() if port}


def addresses(config: Settings) -> list[str]:
    """Where clients connect; empty if there is no server."""
    jdbc = [f"jdbc:hive2://{HOST}:{config.sql_port}"] if config.sql_port else []
    return [*jdbc, f"sc://{HOST}:{config.connect_port}"] if config.connect_port else jdbc


def start(platform: Platform, variables: dict[str, str]) -> None:
    """Start it, unless it runs. variables: the environment of the process."""
    if not platform.find(NAME):
        command = [str(install.venv() / "bin" / "spark-submit"), str(ROOT / "jobs" / "sql_server.py")]
        platform.start(NAME, command, variables)


def wait(config: Settings, platform: Platform, timeout_seconds: float, check: Callable[[], None]) -> None:
    """Wait until it answers at each of its ports. Calls `check`, which may raise.

    Raises SetupError if it died, or if its log has not grown for `timeout_seconds`.
    """

    def check_process() -> None:
        check()
        platform.require([NAME])

    for setting, port in ports(config).items():
        failure = (
            f"{NAME} does not answer at port {port} ({setting}), and its start has not moved for "
            f"{timeout_seconds:.0f} s: read {platform.log(NAME)}"
        )
        timer = StallTimer(timeout_seconds, lambda: platform.logged_bytes(NAME))
        wait_for_port(port, timer, check_process, failure)
