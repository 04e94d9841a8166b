"""The environment of Airflow and Spark: for the processes of `make up`, and as `env.sh` for work in a shell.

It has the class path of a Spark driver, and writes texts for files and command lines that Java programs parse.
"""

import hashlib
import json
import os
import secrets
import shlex
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from pathlib import Path

from include import private_files
from include.local import artifacts, install, java, object_store
from include.settings import LAKE, ROOT, Settings, catalog_variables, kafka_variables


def driver_class_path(config: Settings) -> str:
    """The class path in front of Spark's own, which begins with the configuration directory.

    Class data sharing does not use jars behind a directory, so all archived jars come first.
    """
    return ":".join([*(f"{directory}/*" for directory in _archived_directories(config)), f"{config.jars}/s3/*"])


def class_archive(config: Settings, java_home: Path) -> Path:
    """The path of the archive for these jars and this Java, whether it exists or not."""
    jars = [jar for directory in _archived_directories(config) for jar in sorted(directory.glob("*.jar"))]
    inputs = [str(java_home.resolve()), *(f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars)]
    return config.jars / f"classes-{hashlib.sha256(chr(10).join(inputs).encode()).hexdigest()[:12]}.jsa"


def _archived_directories(config: Settings) -> list[Path]:
    return [config.jars / "spark", artifacts.pyspark_jars()]


def java_property(text: str) -> str:
    """A value of a properties file, whatever characters it has. Some programs read these files as Latin-1."""
    escaped = text.replace("\\", "\\\\")
    escaped = "".join(character if " " <= character <= "~" else _unicode_escape(character) for character in escaped)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def java_options(words: Iterable[str]) -> str:
    """Options of a JVM as one text, which Spark splits at blanks outside quotes."""
    return " ".join(_quoted(word) if set(word) & set(" \t\"'\\") else word for word in words)


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unicode_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))


# Several Airflow processes share one SQLite file. Two requests that block each other in the API server's event loop
# wait this long until one of them fails. Airflow retries it.
SQLITE_TIMEOUT_SECONDS = 5
# A DAG file takes 3 s of CPU. With twenty times as much work as cores, one took 47 s. Airflow's limit of 30 s makes
# that an import error, which ends `make up`. The process that imports it gets more, for all else that it does.
IMPORT_SECONDS = 120
USER = "admin"

# A driver rarely repeats the work of its first minutes, so the JVM's second compiler starts ten times later than by
# default. Otherwise it takes a third of all CPU time.
LATE_COMPILATION = {
    "Tier4InvocationThreshold": 50_000,
    "Tier4MinInvocationThreshold": 6_000,
    "Tier4CompileThreshold": 150_000,
    "Tier4BackEdgeThreshold": 400_000,
}
DRIVER_OPTIONS = (
    *("-XX:+UseSerialGC", "-XX:-UsePerfData"),
    *(f"-XX:{name}={calls}" for name, calls in LATE_COMPILATION.items()),
)
# Hadoop forks a `chmod` for each file that it writes. VFORK halves the cost; later Java versions warn about it.
QUICK_FORK, LAST_JAVA_WITH_QUICK_FORK = "-Djdk.lang.Process.launchMechanism=VFORK", 21
# No warning if the class archive is missing or belongs to other jars.
NO_WARNINGS = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")

SPARK_DEFAULTS = """# Written by `make up`: what the JVM must know at its start. The rest: include/engine/session.py.
spark.driver.extraClassPath      {jars}
spark.driver.memory              1g
spark.driver.host                127.0.0.1
spark.driver.bindAddress         127.0.0.1
spark.driver.extraJavaOptions    {options}
spark.ui.showConsoleProgress     false
"""

# Loggers whose warnings at each start or batch have no significance.
QUIET = {
    "native": "org.apache.hadoop.util.NativeCodeLoader",
    "pools": "org.apache.spark.scheduler.FairSchedulableBuilder",
    "checkpoints": "org.apache.spark.rdd.MapPartitionsRDD",
    "plans": "org.apache.spark.util.SparkStringUtils",
    "adaptive": "org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream",
    # A cluster overrides spark.local.dir.
    "scratch": "org.apache.spark.SparkConf",
    "trigger": "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor",
}

# Values that Spark quotes, and e-mail addresses. Log4j ends a pattern's option at a brace.
VALUES = r"""(?<=[Vv]alue |Text |string: )(?:'[^'\n]*'|"[^"\n]*")|[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z][a-z]+"""
SPARK_LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
logger.sluice.name = sluice
logger.sluice.level = info
{quiet}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.alwaysWriteExceptions = false
appender.stderr.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %-5p %c{{1}}: %replace{{%m%n%ex}}{{{values}}}{{***}}
"""


def write(config: Settings, java_home: Path) -> dict[str, str]:
    """Write the configuration below `home`, and missing secrets. Returns the variables of `env.sh`."""
    for directory in (config.home / "airflow", config.logs):
        directory.mkdir(parents=True, exist_ok=True)
    # The Airflow database contains sessions of users, and connections.
    private_files.restrict(config.home / "airflow")
    _write_secrets(config)
    variables = write_spark(config, java_home) | _airflow(config)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    path = ":".join(shlex.quote(str(part)) for part in _path_directories(java_home))
    file = config.home / "env.sh"
    # The file contains the URL of the control database, with its password.
    private_files.create(file)
    file.write_text("\n".join([*lines, f'export PATH={path}:"$PATH"', ""]))
    return variables


def write_spark(config: Settings, java_home: Path) -> dict[str, str]:
    """Write the startup options of the JVM. Returns the variables of a process that opens a Spark session."""
    spark = config.home / "conf" / "spark"
    for directory in (spark, config.home / "tmp"):
        directory.mkdir(parents=True, exist_ok=True)
    archive = f"-XX:SharedArchiveFile={class_archive(config, java_home)}"
    options = [*DRIVER_OPTIONS, archive, *NO_WARNINGS, f"-Djava.io.tmpdir={config.home / 'tmp'}"]
    if java.version(java_home / "bin" / "java") <= LAST_JAVA_WITH_QUICK_FORK:
        options.append(QUICK_FORK)
    values = {"jars": driver_class_path(config), "options": java_options(options)}
    values = {name: java_property(value) for name, value in values.items()}
    (spark / "spark-defaults.conf").write_text(SPARK_DEFAULTS.format(**values))
    (spark / "log4j2.properties").write_text(spark_logging())
    return _variables(config, java_home)


def spark_logging() -> str:
    """The text of Spark's configuration of logs."""
    quiet = [f"logger.{name}.name = {logger}\nlogger.{name}.level = error" for name, logger in QUIET.items()]
    return SPARK_LOGGING.format(quiet="\n".join(quiet), values=VALUES.replace("\\", "\\\\"))


def process_environment(variables: dict[str, str], java_home: Path) -> dict[str, str]:
    """The complete environment of a process that `make up` starts."""
    path = ":".join([*map(str, _path_directories(java_home)), os.environ.get("PATH", "")])
    return {**os.environ, **variables, "PATH": path}


def password(config: Settings) -> str:
    """The password of the Airflow user `admin`."""
    return str(json.loads(_passwords(config).read_text())[USER])


def _path_directories(java_home: Path) -> list[Path]:
    return list(dict.fromkeys([install.command().parent, install.venv() / "bin", java_home / "bin"]))


def _variables(config: Settings, java_home: Path) -> dict[str, str]:
    store = object_store.declared(config)
    return {
        "SLUICE_HOME": str(config.home),
        "SLUICE_JARS": str(config.jars),
        "SLUICE_LANDING": config.landing,
        **kafka_variables(config),
        **catalog_variables(config),
        "SLUICE_CONTROL_URL": config.control_url,
        "SLUICE_AIRFLOW_PORT": str(config.airflow_port),
        "SLUICE_LEASE_SECONDS": str(config.lease_seconds),
        "SLUICE_EXAMPLES": "on" if config.examples else "off",
        "SLUICE_FAST_PATH": "on" if config.fast_path else "off",
        "SLUICE_DAG_PER_TABLE": "on" if config.dag_per_table else "off",
        "SLUICE_LOG_FORMAT": config.log_format,
        "SLUICE_EXECUTORS": " ".join(f"{name}={least}-{most}" for name, (least, most) in config.executors.items()),
        "SLUICE_CATCH_UP_SECONDS": str(config.catch_up_seconds),
        "SLUICE_REBALANCE": "on" if config.rebalance else "off",
        "SLUICE_SCHEMA_REGISTRY": config.schema_registry,
        "SLUICE_SCHEMA_REGISTRY_CREDENTIALS": str(config.schema_registry_credentials or ""),
        "PYTHONPATH": str(ROOT),
        "JAVA_HOME": str(java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Without an encoding of its locale that has all characters, the JVM finds no file whose name has others.
        "LC_ALL": os.environ["LC_ALL"] if "UTF-8" in os.environ.get("LC_ALL", "").upper() else "C.UTF-8",
        "SPARK_CONF_DIR": str(config.home / "conf" / "spark"),
        "PYSPARK_PYTHON": str(install.venv() / "bin" / "python"),
        "TMPDIR": str(config.home / "tmp"),
        # Another home has its own, unless it was set.
        **({} if config.lake == str(config.home / LAKE) else {"SLUICE_LAKE": config.lake}),
        **(store.client_variables() if store else {}),
    }


def _airflow(config: Settings) -> dict[str, str]:
    home = config.home / "airflow"
    url = f"http://127.0.0.1:{config.airflow_port}"
    logs = config.logs / "airflow"
    options = {
        "CORE__DAGS_FOLDER": ROOT / "dags",
        "CORE__PLUGINS_FOLDER": ROOT / "plugins",
        "CORE__LOAD_EXAMPLES": False,
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": 4,
        "CORE__DAGBAG_IMPORT_TIMEOUT": IMPORT_SECONDS,
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": _passwords(config),
        # A command reads the secrets, so that they never appear in a printed environment.
        "CORE__FERNET_KEY_CMD": shlex.join(["cat", str(_secret(config, "fernet"))]),
        "API__SECRET_KEY_CMD": shlex.join(["cat", str(_secret(config, "api"))]),
        "API_AUTH__JWT_SECRET_CMD": shlex.join(["cat", str(_secret(config, "jwt"))]),
        "API__BASE_URL": url,
        "API__HOST": "127.0.0.1",
        "API__PORT": config.airflow_port,
        "API__WORKERS": 1,
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout={SQLITE_TIMEOUT_SECONDS}",
        "DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": home / "bundles",
        "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": IMPORT_SECONDS + 30,
        "DAG_PROCESSOR__REFRESH_INTERVAL": 30,
        "DAG_PROCESSOR__PARSING_PROCESSES": 1,
        "LOGGING__BASE_LOG_FOLDER": logs,
        "LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": logs / "dag_processor",
    }
    variables = {f"AIRFLOW__{name}": str(value) for name, value in options.items()}
    connection = json.dumps({"conn_type": "spark", "host": "local[*]"})
    # SPT_NOENV: process titles of Airflow must not overwrite the environment, where `make down` reads the marker.
    return {"AIRFLOW_HOME": str(home), "AIRFLOW_CONN_SPARK_DEFAULT": connection, "SPT_NOENV": "1", **variables}


def _write_secrets(config: Settings) -> None:
    _write_if_missing(_secret(config, "fernet"), urlsafe_b64encode(secrets.token_bytes(32)).decode())
    _write_if_missing(_secret(config, "api"), secrets.token_urlsafe(32))
    _write_if_missing(_secret(config, "jwt"), secrets.token_urlsafe(64))
    _write_if_missing(_passwords(config), json.dumps({USER: secrets.token_urlsafe(12)}))


def _write_if_missing(file: Path, text: str) -> None:
    if not file.exists():
        private_files.create(file)
        file.write_text(text)


def _passwords(config: Settings) -> Path:
    return config.home / "airflow" / "passwords.json"


def _secret(config: Settings, name: str) -> Path:
    return config.home / "airflow" / f"{name}.secret"
