"""Writes the secrets of docker-compose.yaml that `.env` lacks: python -m include.containers.compose_env

Runs on a bare Python, like `include.local.install`.
"""

from __future__ import annotations

import os
import secrets
from base64 import urlsafe_b64encode
from pathlib import Path

from include.errors import SetupError, report
from include.settings import ROOT

FILE = ROOT / ".env"


def _key() -> str:
    """32 bytes, as Fernet and HS256 take them."""
    return urlsafe_b64encode(secrets.token_bytes(32)).decode()


def _cluster_id() -> str:
    return urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")


VALUES = {
    "AIRFLOW_ADMIN_PASSWORD": lambda: secrets.token_urlsafe(16),
    "AIRFLOW_API_SECRET": lambda: secrets.token_urlsafe(48),
    "AIRFLOW_DATABASE_PASSWORD": lambda: secrets.token_urlsafe(32),
    "AIRFLOW_FERNET_KEY": _key,
    # Airflow signs by HS512, and warns about less than 64 bytes.
    "AIRFLOW_JWT_SECRET": lambda: secrets.token_urlsafe(64),
    "CONTROL_DATABASE_PASSWORD": lambda: secrets.token_urlsafe(32),
    "CONTROL_DRIVER_PASSWORD": lambda: secrets.token_urlsafe(32),
    "CONTROL_SUPERVISOR_PASSWORD": lambda: secrets.token_urlsafe(32),
    "KAFKA_CLUSTER_ID": _cluster_id,
    "SPARK_AUTH_SECRET": lambda: secrets.token_urlsafe(48),
    "SPARK_REST_KEY": _key,
}


def main() -> None:
    added = complete(FILE)
    written = f"{FILE.name} got {', '.join(added)}" if added else f"{FILE.name} has all variables already"
    print(f"{written}; AIRFLOW_ADMIN_PASSWORD is the password of the user admin")


def complete(file: Path) -> list[str]:
    """Add the variables that are missing or empty. Returns their names. Raises SetupError if nothing can be written."""
    try:
        # Nobody else may read it, from its first byte on.
        with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+") as opened:
            os.fchmod(opened.fileno(), 0o600)
            text = opened.read()
            present = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
            missing = [name for name in VALUES if not present.get(name)]
            end_of_line = "" if not text or text.endswith("\n") else "\n"
            opened.write(end_of_line + "".join(f"{name}={VALUES[name]()}\n" for name in missing))
    except OSError as error:
        raise SetupError(f"{file} cannot be written ({error.strerror}): correct its permissions") from error
    return missing


if __name__ == "__main__":
    report(main)
