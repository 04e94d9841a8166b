"""The environment of Airflow and Spark: for the processes of `make up`, and as `env.sh` for whoever works by hand."""

import json
import os
import secrets
import shlex
from base64 import urlsafe_b64encode
from pathlib import Path

from include.control.store import private_files
from include.local import class_path, install, java
from include.settings import ROOT, Settings

# Several Airflow processes share one SQLite file. Two requests that wait for each other in the API server's one loop
# wait this long, until one of them fails and is tried again.
SQLITE_TIMEOUT_SECONDS = 5
USER = "admin"

# What a driver does in its first minutes hardly ever comes again, so the JVM's second compiler waits ten times longer
# than by default; a third of all CPU goes into it otherwise.
LATE_COMPILATION = {
    "Tier4InvocationThreshold": 50_000,
    "Tier4MinInvocationThreshold": 6_000,
    "Tier4CompileThreshold": 150_000,
    "Tier4BackEdgeThreshold": 400_000,
}
DRIVER_OPTIONS = " ".join(
    ["-XX:+UseSerialGC", "-XX:-UsePerfData", *(f"-XX:{name}={calls}" for name, calls in LATE_COMPILATION.items())]
)
# Hadoop forks a `chmod` for each file that it writes, which costs half as much in this way. Later ones warn of it.
QUICK_FORK, LAST_JAVA_WITH_QUICK_FORK = "-Djdk.lang.Process.launchMechanism=VFORK", 21
# Without a word where an archive of classes is missing, or is one of other jars.
NO_WARNINGS = "-Xlog:cds=off -Xlog:cds+dynamic=off"

SPARK_DEFAULTS = """# Written by `make up`: what the JVM must know at its start. The rest: include/engine/session.py.
spark.driver.extraClassPath      {jars}
spark.driver.memory              1g
spark.driver.host                127.0.0.1
spark.driver.bindAddress         127.0.0.1
spark.driver.extraJavaOptions    {options} -Djava.io.tmpdir={temporary}
spark.ui.showConsoleProgress     false
"""

# What Spark warns of at every start or every batch although all is as it should be.
QUIET = {
    "native": "org.apache.hadoop.util.NativeCodeLoader",
    "pools": "org.apache.spark.scheduler.FairSchedulableBuilder",
    "checkpoints": "org.apache.spark.rdd.MapPartitionsRDD",
    "plans": "org.apache.spark.util.SparkStringUtils",
    "adaptive": "org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream",
    # That a cluster has its own idea of spark.local.dir.
    "scratch": "org.apache.spark.SparkConf",
    "trigger": "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor",
}

SPARK_LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
logger.sluice.name = sluice
logger.sluice.level = info
{quiet}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %-5p %c{{1}}: %m%n%ex
"""


def write(where: Settings, java_home: Path) -> dict[str, str]:
    """Write the configuration below `home`, secrets only where there are none. Returns the variables of `env.sh`."""
    for directory in (where.home / "airflow", where.logs):
        directory.mkdir(parents=True, exist_ok=True)
    # Airflow's database holds its users' sessions and connections.
    private_files.close(where.home / "airflow")
    _write_secrets(where)
    variables = write_spark(where, java_home) | _airflow(where)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    path = ":".join(shlex.quote(str(part)) for part in _path(java_home))
    file = where.home / "env.sh"
    # It names the control database, with its password.
    private_files.create(file)
    file.write_text("\n".join([*lines, f'export PATH={path}:"$PATH"', ""]))
    return variables


def write_spark(where: Settings, java_home: Path) -> dict[str, str]:
    """Write what the JVM must know at its start. Returns the variables of a process that opens a Spark session."""
    spark = where.home / "conf" / "spark"
    for directory in (spark, where.home / "tmp"):
        directory.mkdir(parents=True, exist_ok=True)
    options = f"{DRIVER_OPTIONS} -XX:SharedArchiveFile={class_path.archive(where, java_home)} {NO_WARNINGS}"
    if java.version(java_home / "bin" / "java") <= LAST_JAVA_WITH_QUICK_FORK:
        options = f"{options} {QUICK_FORK}"
    values = {"jars": class_path.of_driver(where), "options": options, "temporary": where.home / "tmp"}
    (spark / "spark-defaults.conf").write_text(SPARK_DEFAULTS.format(**values))
    quiet = [f"logger.{name}.name = {logger}\nlogger.{name}.level = error" for name, logger in QUIET.items()]
    (spark / "log4j2.properties").write_text(SPARK_LOGGING.format(quiet="\n".join(quiet)))
    return _variables(where, java_home)


def of_process(variables: dict[str, str], java_home: Path) -> dict[str, str]:
    """The whole environment of a process that `make up` starts."""
    path = ":".join([*map(str, _path(java_home)), os.environ.get("PATH", "")])
    return {**os.environ, **variables, "PATH": path}


def password(where: Settings) -> str:
    """The password of the Airflow user `admin`."""
    return str(json.loads(_passwords(where).read_text())[USER])


def _path(java_home: Path) -> list[Path]:
    return [install.venv() / "bin", java_home / "bin"]


def _variables(where: Settings, java_home: Path) -> dict[str, str]:
    return {
        "SLUICE_HOME": str(where.home),
        "SLUICE_JARS": str(where.jars),
        "SLUICE_LANDING": where.landing,
        "SLUICE_KAFKA": where.kafka,
        "SLUICE_CONTROL_URL": where.control_url,
        "SLUICE_AIRFLOW_PORT": str(where.airflow_port),
        "SLUICE_LEASE_SECONDS": str(where.lease_seconds),
        "SLUICE_EXAMPLES": "on" if where.examples else "off",
        "SLUICE_FAST_PATH": "on" if where.fast_path else "off",
        "PYTHONPATH": str(ROOT),
        "JAVA_HOME": str(java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(where.home / "conf" / "spark"),
        "PYSPARK_PYTHON": str(install.venv() / "bin" / "python"),
        "TMPDIR": str(where.home / "tmp"),
    }


def _airflow(where: Settings) -> dict[str, str]:
    home = where.home / "airflow"
    url = f"http://127.0.0.1:{where.airflow_port}"
    logs = where.logs / "airflow"
    options = {
        "CORE__DAGS_FOLDER": ROOT / "dags",
        "CORE__PLUGINS_FOLDER": ROOT / "plugins",
        "CORE__LOAD_EXAMPLES": False,
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": 4,
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": _passwords(where),
        # Read by a command, so that no secret stands in an environment that anybody prints.
        "CORE__FERNET_KEY_CMD": shlex.join(["cat", str(_secret(where, "fernet"))]),
        "API__SECRET_KEY_CMD": shlex.join(["cat", str(_secret(where, "api"))]),
        "API_AUTH__JWT_SECRET_CMD": shlex.join(["cat", str(_secret(where, "jwt"))]),
        "API__BASE_URL": url,
        "API__HOST": "127.0.0.1",
        "API__PORT": where.airflow_port,
        "API__WORKERS": 1,
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout={SQLITE_TIMEOUT_SECONDS}",
        "DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": home / "bundles",
        "DAG_PROCESSOR__REFRESH_INTERVAL": 30,
        "DAG_PROCESSOR__PARSING_PROCESSES": 1,
        "LOGGING__BASE_LOG_FOLDER": logs,
        "LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": logs / "dag_processor",
    }
    variables = {f"AIRFLOW__{name}": str(value) for name, value in options.items()}
    connection = json.dumps({"conn_type": "spark", "host": "local[*]"})
    # Airflow renames its processes over the memory that holds their environment, where `make down` reads the marker.
    return {"AIRFLOW_HOME": str(home), "AIRFLOW_CONN_SPARK_DEFAULT": connection, "SPT_NOENV": "1", **variables}


def _write_secrets(where: Settings) -> None:
    _write_once(_secret(where, "fernet"), urlsafe_b64encode(secrets.token_bytes(32)).decode())
    _write_once(_secret(where, "api"), secrets.token_urlsafe(32))
    _write_once(_secret(where, "jwt"), secrets.token_urlsafe(64))
    _write_once(_passwords(where), json.dumps({USER: secrets.token_urlsafe(12)}))


def _write_once(file: Path, text: str) -> None:
    if not file.exists():
        private_files.create(file)
        file.write_text(text)


def _passwords(where: Settings) -> Path:
    return where.home / "airflow" / "passwords.json"


def _secret(where: Settings, name: str) -> Path:
    return where.home / "airflow" / f"{name}.secret"
