"""Which variables of an environment may hold a secret. Programs that need none of them get an environment without."""

import re
from collections.abc import Collection, Mapping

# By their names, as Sluice, Airflow, AWS, libpq and most other programs spell them.
SECRET = re.compile(
    r"PASSW|PASSFILE|SECRET|TOKEN|CREDENTIAL|(?:API|ACCESS|PRIVATE|REST)_?KEY|FERNET|JWT|WEBHOOK|PROXY|DSN"
    r"|^AIRFLOW_CONN_|CONTROL_URL|SQL_ALCHEMY_CONN|^PG",
    re.IGNORECASE,
)
# Of Airflow, which no other program needs.
OF_AIRFLOW = re.compile(r"^AIRFLOW_", re.IGNORECASE)
# Who is reached without a proxy.
PUBLIC = re.compile(r"^no_proxy$", re.IGNORECASE)


def without_secrets(environment: Mapping[str, str], keeps: Collection[str] = ()) -> dict[str, str]:
    """Returns the environment of a program that needs no secret except those whose names begin with one of `keeps`."""
    return {
        name: value
        for name, value in environment.items()
        if PUBLIC.search(name) or name.startswith(tuple(keeps)) or not SECRET.search(name)
    }


def without_airflow(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a program that is no part of Airflow: without its connections and settings."""
    return {name: value for name, value in environment.items() if not OF_AIRFLOW.search(name)}
