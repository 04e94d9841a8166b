"""Refuses addresses with a password: every log, status and alarm may show an address."""

import re
from collections.abc import Mapping

from include.errors import UsageError

# A user or a password in a URL. A secret key may contain slashes, and digits before a slash are a port.
LOGIN = re.compile(r"://(?:[^/\s]*@|[^/:\s]+:(?!\d+/)[^@\s]*@)")
KEYS_OF_S3 = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
# By variable: where its credentials belong.
PLACES = {
    "SLUICE_LAKE": KEYS_OF_S3,
    "SLUICE_LANDING": KEYS_OF_S3,
    "AWS_ENDPOINT_URL": KEYS_OF_S3,
    "SLUICE_KAFKA": "set SLUICE_KAFKA_CONFIG to a properties file",
    "SLUICE_SCHEMA_REGISTRY": "set SLUICE_SCHEMA_REGISTRY_CREDENTIALS to a file with USER:PASSWORD",
    "OPENLINEAGE_URL": "set OPENLINEAGE_API_KEY",
}


def require_no_login(environment: Mapping[str, str]) -> None:
    """Raises UsageError, without the value, for a variable whose address has a user or a password."""
    for name, place in PLACES.items():
        value = environment.get(name, "")
        if LOGIN.search(value) or ("@" in value and name == "SLUICE_KAFKA"):
            raise UsageError(f"{name} has a user or a password: take it out, and {place}")
