"""The answer of a person to an approval, and whether who asked may give it."""

from dataclasses import dataclass
from typing import Any

from airflow.configuration import conf

from include import access
from include.access import Place
from include.settings import settings

APPROVE, REJECT = "Approve", "Reject"
# Airflow's simple auth manager, whose users are in Airflow's configuration.
SIMPLE = "SimpleAuthManager"


@dataclass(frozen=True)
class ApprovalDecision:
    """The decision about an approval. by: the user who decided. message: the decision in words. reason: of the user."""

    is_approved: bool
    by: str
    message: str
    reason: str = ""


def evaluate_approval(answer: dict[str, Any] | None, requester: str | None) -> ApprovalDecision:
    """Evaluate an `approval`. answer: Airflow's response. requester: may not approve it if others can."""
    # Without a response, somebody has marked the task as success instead of answering it.
    user = answer and answer["responded_by_user"]
    if not answer or not user:
        return ApprovalDecision(False, "", "nobody approved it")
    approver, reason = str(user["name"]), (answer.get("params_input") or {}).get("reason", "").strip()
    words = f"{approver}: {reason}" if reason else approver
    if answer["chosen_options"] != [APPROVE]:
        return ApprovalDecision(False, approver, f"rejected by {words}", reason)
    if lacking := lacks_role(approver):
        return ApprovalDecision(False, approver, f"{lacking}, so that an admin has to approve it")
    if approver == requester and needs_four_eyes():
        return ApprovalDecision(
            False, approver, f"{approver} asked for it, so that another user has to approve it (SLUICE_FOUR_EYES)"
        )
    return ApprovalDecision(True, approver, f"approved by {words}", reason)


def lacks_role(approver: str) -> str | None:
    """Why the user may not approve, in words. A task sees the roles of the simple auth manager alone; with another one,
    Airflow decides who may answer, unless `SLUICE_ADMINS` names who may.
    """
    if admins := settings().admins:
        return None if approver in admins else f"{approver} is not one of SLUICE_ADMINS"
    if not conf.get("core", "auth_manager").endswith(SIMPLE) or _is_open():
        return None
    users = dict(user.partition(":")[::2] for user in conf.getlist("core", "simple_auth_manager_users"))
    # As Airflow reads it, teams follow the role.
    role = users.get(approver, "").partition(":")[0].lower()
    is_admin = access.OF_AIRFLOW.get(role) is access.least(Place.APPROVAL, "approve")
    return None if is_admin else f"{approver} has {f'the role {role}' if role else 'no role'} in Airflow"


def _is_open() -> bool:
    # With this option, everybody is an anonymous admin.
    return conf.getboolean("core", "simple_auth_manager_all_admins")


def needs_four_eyes() -> bool:
    """Whether who asked for something may not approve it."""
    setting = settings().four_eyes
    return _has_several_users() if setting is None else setting


def _has_several_users() -> bool:
    """Auth managers other than the simple one are assumed to have several users."""
    if not conf.get("core", "auth_manager").endswith(SIMPLE):
        return True
    return not _is_open() and len(conf.getlist("core", "simple_auth_manager_users")) > 1
