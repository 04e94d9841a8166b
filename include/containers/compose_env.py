"""Writes the secrets of docker-compose.yaml that `.env` lacks: python -m include.containers.compose_env [--store]

It writes each one into a file of its own, too, which the containers that need it mount. With --store, the lake is in
the S3 store of that file.
Runs on a bare Python, like `include.local.install`.
"""

from __future__ import annotations

import os
import secrets
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from pathlib import Path

from include.errors import SetupError, report
from include.settings import ROOT

FILE, DIRECTORY = ROOT / ".env", ROOT / ".secrets"


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
# Those of other services, which only their owner knows.
GIVEN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "OPENLINEAGE_API_KEY")
# The lake in the service `store`, which is in a profile of its own.
STORE = {
    "COMPOSE_PROFILES": lambda: "store",
    "SLUICE_LAKE": lambda: "s3a://sluice/lake",
    "AWS_ALLOW_HTTP": lambda: "true",
    "AWS_ENDPOINT_URL": lambda: "http://store:7070",
    "AWS_REGION": lambda: "us-east-1",
    "AWS_ACCESS_KEY_ID": lambda: "sluice",
    "AWS_SECRET_ACCESS_KEY": lambda: secrets.token_urlsafe(32),
}
SECRETS = (*(name for name in VALUES if name != "KAFKA_CLUSTER_ID"), *GIVEN)


def main() -> None:
    added = complete(FILE, VALUES | STORE if "--store" in sys.argv[1:] else VALUES)
    write_files(DIRECTORY, variables(FILE.read_text()))
    written = f"{FILE.name} got {', '.join(added)}" if added else f"{FILE.name} has all variables already"
    print(f"{written}, and {DIRECTORY.name} a file of each; AIRFLOW_ADMIN_PASSWORD is the password of the user admin")


def complete(file: Path, values: Mapping[str, Callable[[], str]] = VALUES) -> list[str]:
    """Add the variables that are missing or empty. Returns their names. Raises SetupError if nothing can be written."""
    try:
        # Nobody else may read it, from its first byte on.
        with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+") as opened:
            os.fchmod(opened.fileno(), 0o600)
            text = opened.read()
            present = variables(text)
            _require_lake(file, present, values)
            missing = [name for name in values if not present.get(name)]
            end_of_line = "" if not text or text.endswith("\n") else "\n"
            opened.write(end_of_line + "".join(f"{name}={values[name]()}\n" for name in missing))
    except OSError as error:
        raise SetupError(f"{file} cannot be written ({error.strerror}): correct its permissions") from error
    return missing


def _require_lake(file: Path, present: Mapping[str, str], values: Mapping[str, Callable[[], str]]) -> None:
    """Refuse a store that would stay empty."""
    name = "SLUICE_LAKE"
    if name in values and present.get(name) not in (None, "", values[name]()):
        raise SetupError(
            f"{name} is {present[name]} in {file.name}, so the store would stay empty: take that line out, or leave "
            "STORE=1 out"
        )


def variables(text: str) -> dict[str, str]:
    """The variables of `.env`, as Compose reads them: quotes around a value, and a comment after it, are no part."""
    pairs = (line.strip().removeprefix("export ").split("=", 1) for line in text.splitlines() if "=" in line)
    return {name.strip(): _unquoted(value.strip()) for name, value in pairs}


def _unquoted(value: str) -> str:
    if value[:1] in {"'", '"'} and value[0] in value[1:]:
        return value[1 : value.index(value[0], 1)]
    return "" if value.startswith("#") else value.split(" #", 1)[0].strip()


def write_files(directory: Path, values: Mapping[str, str]) -> None:
    """Write each secret into a file; an empty one if there is no value. Raises SetupError if that is impossible.

    The user of a container has another number than the owner of the file. So all may read the files, and nobody else
    may enter their directory.
    """
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        directory.chmod(0o700)
        for name in SECRETS:
            file, draft = directory / name, directory / f".{name}"
            # By a rename: a container that starts meanwhile never reads half a secret.
            draft.unlink(missing_ok=True)
            draft.write_text(values.get(name, ""))
            draft.chmod(0o444)
            draft.replace(file)
    except OSError as error:
        raise SetupError(f"{directory} cannot be written ({error.strerror}): correct its permissions") from error


if __name__ == "__main__":
    report(main)
