"""The first process of each container. It writes what programs read at their start, and becomes the command.

python -m include.containers.entry airflow scheduler

Mounted secrets are variables of it. On Kubernetes, Spark calls `driver` or `executor` in its pods.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from include import private_files
from include.containers import mounted, spark_pods
from include.errors import report
from include.local import environment
from include.local.environment import USER, java_options, java_property
from include.settings import ROOT, settings

SPARK_DEFAULTS = ROOT / "containers" / "spark-defaults.conf"
# By variable of a container that knows it: the setting of Spark.
SECRETS = {
    "SPARK_AUTH_SECRET": "spark.authenticate.secret",
    "SPARK_REST_KEY": "spark.org.apache.spark.ui.JWSFilter.param.secretKey",
}
PASSWORDS_FILE = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"


def main() -> None:
    os.environ.update(mounted.variables(os.environ))
    # Pods of drivers have a volume of their own at the last one, which only this user may create in a shared home.
    for folder in (settings().logs, settings().temporary, settings().home / "checkpoints"):
        folder.mkdir(parents=True, exist_ok=True)
    command = sys.argv[1:]
    if command[0] in spark_pods.COMMANDS:
        # Spark has mounted its configuration.
        command = spark_pods.COMMANDS[command[0]](command[1:], os.environ)
    else:
        write_spark(Path(os.environ["SPARK_CONF_DIR"]), os.environ)
    if password := os.environ.get("AIRFLOW_ADMIN_PASSWORD"):
        _write_secret(Path(os.environ[PASSWORDS_FILE]), json.dumps({USER: password}))
    os.execvp(command[0], command)


def write_spark(directory: Path, variables: Mapping[str, str]) -> None:
    """Write the configuration of Spark, with the secrets of these variables. SLUICE_SPARK_DEFAULTS: a file to begin
    with, instead of the one of a standalone cluster.
    """
    defaults = Path(variables.get("SLUICE_SPARK_DEFAULTS") or SPARK_DEFAULTS)
    directory.mkdir(parents=True, exist_ok=True)
    options = [*environment.DRIVER_OPTIONS, environment.QUICK_FORK, f"-Djava.io.tmpdir={settings().temporary}"]
    lines = [f"spark.driver.extraJavaOptions {java_property(java_options(options))}"]
    lines += [f"{setting} {java_property(variables[name])}" for name, setting in SECRETS.items() if name in variables]
    _write_secret(directory / "spark-defaults.conf", "\n".join([defaults.read_text(), *lines, ""]))
    (directory / "log4j2.properties").write_text(environment.spark_logging())


def _write_secret(file: Path, text: str) -> None:
    private_files.create(file)
    file.write_text(text)


if __name__ == "__main__":
    report(main)
