"""The errors of an S3 store that does not answer, or that refuses the credentials: as states with a name.

Spark, delta-rs and Arrow report the same outage in different words. An operator reads one sentence.
"""

import os
import re
import time

from include.errors import Unreachable
from include.settings import settings

AWAY, REFUSED = "UNREACHABLE", "ACCESS"
# Error codes of S3 that only other credentials cure. Their HTTP status is 400 or 403.
REFUSAL_CODES = (
    *("AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken"),
    *("InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired"),
)
# Without a body, as in the answer to HEAD, 400 means a token that is expired or for another region.
REFUSAL_STATUS = (400, 401, 403)
# Where the libraries look for credentials that no variable has.
METADATA_SERVICE = "169.254.169.254"
NO_BUCKET = "NoSuchBucket"
CODE, STATUS = re.compile(r"<Code>(\w+)</Code>"), re.compile(r"(?:status code:?|HTTP status) (\d{3})\b")
# Arrow spells `AccessDenied` as ACCESS_DENIED.
ARROW_CODE = re.compile(r"AWS Error (\w+)")
CAUSE = re.compile(r"Connection refused|timed out|TimedOut|dns error|certificate")
# delta-rs colours its messages.
COLOUR = re.compile("\x1b\\[[0-9;]*m")
REASON_CHARACTERS = 120
# A process that looks at every table waits once, and not at each table again.
KNOWN_SECONDS = 5


def error_of(path: str, reason: str, is_refused: bool) -> Unreachable:
    """Returns the error for a path of a store, `s3a://bucket/key`. reason: what the store or its client says.

    A path outside the lake, such as a landing folder, is named as itself.
    """
    lake = settings().lake
    is_lake = f"{path}/".startswith(f"{lake}/") or f"{lake}/".startswith(f"{path}/")
    place, where = f"the lake {lake}" if is_lake else path, os.environ.get("AWS_ENDPOINT_URL") or "Amazon S3"
    name = f"{'LAKE' if is_lake else 'SOURCE'}_{REFUSED if is_refused else AWAY}"
    if is_refused:
        return Unreachable(
            f"{place} cannot be used, because the store at {where} refuses the credentials ({reason} for {path}): "
            f"renew them, or permit them to use the bucket",
            name,
        )
    if reason == NO_BUCKET:
        return Unreachable(f"{place} lies in a bucket that does not exist at {where}: create it", name)
    return Unreachable(
        f"{place} cannot be used, because the store at {where} does not answer ({reason}): start it, or correct "
        f"AWS_ENDPOINT_URL",
        name,
    )


def of_text(path: str, text: str) -> Unreachable:
    """Returns the error for a message of delta-rs, obstore or Arrow. path: as for `error_of`."""
    plain = " ".join(COLOUR.sub("", text).replace("↳", "").split())
    if METADATA_SERVICE in plain:
        return error_of(path, "none were found", is_refused=True)
    code, status, cause = CODE.search(plain) or ARROW_CODE.search(plain), STATUS.search(plain), CAUSE.search(plain)
    named = code[1].title().replace("_", "") if code and code.re is ARROW_CODE else code[1] if code else ""
    if named == "Unknown":
        named = ""
    reason = named or (f"HTTP status {status[1]}" if status else cause[0] if cause else plain)
    return error_of(path, reason[:REASON_CHARACTERS], is_refusal(int(status[1]) if status else 0, named))


def is_refusal(status: int, code: str) -> bool:
    """Whether an answer refuses the credentials. status: of HTTP, 0 if unknown. code: empty without a body."""
    return code in REFUSAL_CODES or (not code and status in REFUSAL_STATUS)


def remember(outage: Unreachable | None) -> None:
    """Lets the lake's readers in this process fail at once for some seconds; None: they ask the store again."""
    global _known
    _known = (outage, time.monotonic() + KNOWN_SECONDS) if outage else None


def raise_known(path: str) -> None:
    """Raises the error that was remembered a moment ago, if the path lies in the lake."""
    if _known and time.monotonic() < _known[1] and path.startswith(f"{settings().lake}/"):
        raise _known[0]


_known: tuple[Unreachable, float] | None = None
