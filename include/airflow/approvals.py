"""The answer of a person to an approval, and whether who asked may give it."""

from dataclasses import dataclass
from typing import Any

from airflow.configuration import conf

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
    if approver == requester and needs_four_eyes():
        return ApprovalDecision(
            False, approver, f"{approver} asked for it, so that another user has to approve it (SLUICE_FOUR_EYES)"
        )
    return ApprovalDecision(True, approver, f"approved by {words}", reason)


def needs_four_eyes() -> bool:
    """Whether who asked for something may not approve it."""
    setting = settings().four_eyes
    return _has_several_users() if setting is None else setting


def _has_several_users() -> bool:
    """Auth managers other than the simple one are assumed to have several users."""
    if not conf.get("core", "auth_manager").endswith(SIMPLE):
        return True
    # With this option, everybody is an anonymous admin.
    is_open = conf.getboolean("core", "simple_auth_manager_all_admins")
    return not is_open and len(conf.getlist("core", "simple_auth_manager_users")) > 1
