"""Who looks at a page, and what they may ask of Airflow. Without Airflow: nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Approval:
    """A question of a job that waits for a person. question, plan: its words, the plan in Markdown.

    place: of its task in Airflow's API, below `dags/`. subject: the table, flow or job it is about. may_answer: whether
    the viewer may. is_own: the viewer asked for the job, so that another user has to approve it.
    """

    question: str
    plan: str
    place: str
    run: str
    subject: str
    who: str
    asked_at: float
    may_answer: bool = False
    is_own: bool = False


@dataclass(frozen=True)
class Viewer:
    """may_press: whether they may trigger the DAG `control.stream`. may_replay: `replay`. may_approve: a rewind."""

    name: str
    may_press: bool
    may_replay: bool = False
    may_approve: bool = False

    @property
    def may_ask(self) -> bool:
        """Whether a page can have a button for them."""
        return self.may_press or self.may_replay or self.may_approve

    def approvals(self) -> Sequence[Approval]:
        """The questions that wait for a person, and that they may see, oldest first."""
        return ()

    def form(self, _dag: str, _run: str) -> Mapping[str, Any]:
        """What the form of a run names; empty where they may not see it."""
        return {}
