"""Who may do what: the least role for each thing that a person can do, at each place where it can be done.

Airflow's auth manager gives a user a role. `docs/operate/access.md` says which of its roles is which of these.
"""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Each includes the roles before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


class Place(StrEnum):
    """Where something is done."""

    RUN = "trigger a DAG"
    ACTION = "action of control.stream"
    APPROVAL = "approve a request (Required Actions)"
    PAGE = "page of the console"
    COMMAND = "command of sluice"
    SQL = "SQL client"


@dataclass(frozen=True)
class Capability:
    """names: of DAGs, actions, pages, commands or settings. least: the role that may do it. guard: what refuses others.
    needs_approval: an admin has to approve it, another one than who asked for it, where there are several users.
    """

    place: Place
    names: tuple[str, ...]
    least: Role
    guard: str
    needs_approval: bool = False


BY_AIRFLOW = "Airflow: the right to trigger that DAG"
BY_DATABASE = "the credentials of the control database and of the lake"
CAPABILITIES = (
    Capability(
        Place.PAGE,
        ("/", "/flow", "/tables", "/table", "/graph", "/incidents", "/jobs", "/cost", "/audit", "/dag", "/static"),
        Role.VIEWER,
        "Airflow: the right to see the DAG supervise",
    ),
    Capability(
        Place.RUN,
        ("backfill", "control.stream", "maintain", "refresh", "replay", "supervise"),
        Role.OPERATOR,
        BY_AIRFLOW,
    ),
    Capability(Place.RUN, ("erase", "full_refresh", "rewind"), Role.OPERATOR, BY_AIRFLOW, needs_approval=True),
    Capability(
        Place.ACTION,
        ("restart", "stop", "start", "drain", "catch up", "acknowledge", "keep old rows", "move"),
        Role.OPERATOR,
        BY_AIRFLOW,
    ),
    Capability(
        Place.ACTION,
        ("accept data loss", "reset checkpoint", "skip", "release", "give up"),
        Role.OPERATOR,
        BY_AIRFLOW,
        needs_approval=True,
    ),
    Capability(Place.APPROVAL, ("approve",), Role.ADMIN, "the task after the approval"),
    Capability(Place.COMMAND, ("all",), Role.ADMIN, BY_DATABASE),
    Capability(Place.SQL, ("SLUICE_SQL_PORT", "SLUICE_CONNECT_PORT"), Role.ADMIN, "access to 127.0.0.1 of its machine"),
)
# By the role of Airflow's simple auth manager. FAB has roles of the same names.
OF_AIRFLOW = {"viewer": Role.VIEWER, "user": Role.OPERATOR, "op": Role.ADMIN, "admin": Role.ADMIN}
APPROVED_ACTIONS = frozenset(
    name
    for capability in CAPABILITIES
    for name in capability.names
    if capability.place is Place.ACTION and capability.needs_approval
)


def least(place: Place, name: str) -> Role:
    """The least role that may do it."""
    [found] = [one.least for one in CAPABILITIES if one.place is place and name in one.names]
    return found
