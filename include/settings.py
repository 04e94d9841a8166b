"""Paths, ports and addresses, read once from the environment. `.env.example` lists every name and default."""

import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from include.errors import UsageError
from include.layers import LAYERS

# A user or a password in a URL. A secret key may contain slashes, and digits before a slash are a port.
LOGIN = re.compile(r"://(?:[^/\s]*@|[^/:\s]+:(?!\d+/)[^@\s]*@)")
KEYS_OF_S3 = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
# By variable: where its credentials belong.
PLACES = {
    "SLUICE_LAKE": KEYS_OF_S3,
    "SLUICE_LANDING": KEYS_OF_S3,
    "AWS_ENDPOINT_URL": KEYS_OF_S3,
    "AWS_ENDPOINT_URL_GLUE": KEYS_OF_S3,
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


# As shares of a lease: a driver that cannot renew ends itself this long before expiry, and checks at this interval.
LEASE_MARGIN, LEASE_CHECK_INTERVAL = 1 / 6, 1 / 60
# Upper bound of the time that halting the JVM takes.
HALT_SECONDS = 1
SHORTEST_LEASE_SECONDS = math.ceil(HALT_SECONDS / (LEASE_MARGIN - LEASE_CHECK_INTERVAL))
# The lake below `home`, and the checkpoints below any other lake. Spark's listings skip the latter's name.
LAKE, CHECKPOINTS = "lake", "_checkpoints"
# As `main=1-3`: the driver, and the fewest and the most executors that it may have.
EXECUTORS = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*)=(\d{1,4})-(\d{1,4})")
CLUSTER_VARIABLE = re.compile("SLUICE_KAFKA_(?:([A-Z][A-Z0-9_]*)_)?CONFIG")
# As `glue` or `glue:sales_`. A catalog takes names in small letters only.
GLUE = re.compile("glue(?::([a-z][a-z0-9_]{0,99}))?")
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Settings:
    """The places and ports of one installation.

    home: the directory of everything that Sluice writes, except the lake where that lies elsewhere.
    lake: the absolute path or `s3a://bucket/key` of tables, quarantines, records of the ledger and, unless it is
      `home/lake`, checkpoints. `include.lake.locations` has the paths in it.
    jars: JVM artifacts: `jars/spark` and, on demand, `jars/s3` for drivers, `jars/broker` for the embedded Kafka.
    landing: path or URL of the landing folder.
    kafka: bootstrap servers of the default Kafka cluster, `host:port[,host:port]`; empty if its file says them.
    kafka_files: the properties file of each Kafka cluster by its name, of the default one by "".
    control_url: SQLAlchemy URL of the control database.
    platform_name: names this platform in messages and pages.
    airflow_port: port of the Airflow UI on 127.0.0.1.
    lease_seconds: time to live of a lease without renewal.
    lineage_url: URL of an OpenLineage receiver; empty if there is none.
    examples: whether the tables of `include/examples` belong to the platform.
    dag_per_table: whether Airflow also has the DAGs of earlier releases, one for each verb and table.
    fast_path: whether `include.engine.fast_path` commits small batches without a Spark query.
    sql_port: port of the JDBC server on 127.0.0.1; None: there is none. connect_port: that of Spark Connect.
    s3_port: port of the S3 store on 127.0.0.1 that `make up` starts; None: it starts none.
    schema_registry: URL of a schema registry with Confluent's API; empty if there is none.
    schema_registry_credentials: file with `USER:PASSWORD`, or with `Bearer TOKEN`, for the registry; None: no login.
    log_format: of long-lived processes, text or json.
    four_eyes: whether nobody may approve their own request; None: only if Airflow has more than one user.
    admins: the users who may approve what is destructive; empty: whoever has that role in Airflow.
    executors: by driver, the fewest and the most executors that it may have; no other driver is scaled.
    catch_up_seconds: in which a scaled driver is to read a backlog.
    rebalance: whether flows move from one scaled driver to another one.
    catalog_prefix: what the names of databases in the Glue catalog begin with; None: no table is registered there.
    catalog_layers: the layers whose tables are registered.
    """

    home: Path
    lake: str
    jars: Path
    landing: str
    kafka: str
    # Not part of `repr`, because it may contain a password.
    control_url: str = field(repr=False)
    airflow_port: int
    lease_seconds: float
    lineage_url: str
    examples: bool
    four_eyes: bool | None = None
    admins: tuple[str, ...] = ()
    fast_path: bool = True
    dag_per_table: bool = True
    log_format: str = "text"
    sql_port: int | None = None
    connect_port: int | None = None
    s3_port: int | None = None
    schema_registry: str = ""
    schema_registry_credentials: Path | None = None
    kafka_files: Mapping[str, Path] = field(default_factory=dict)
    executors: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    catch_up_seconds: float = 600.0
    rebalance: bool = False
    catalog_prefix: str | None = None
    catalog_layers: tuple[str, ...] = ("silver", "gold")
    platform_name: str = field(default_factory=socket.gethostname)

    @property
    def all_checkpoints(self) -> str:
        """The absolute path or URL of the directory that holds a directory for each flow."""
        is_at_home = self.lake == str(self.home / LAKE)
        return str(self.home / "checkpoints") if is_at_home else f"{self.lake}/{CHECKPOINTS}"

    @property
    def has_s3_lake(self) -> bool:
        return "://" in self.lake

    @property
    def spark_class_path(self) -> str:
        """The class path of drivers and executors, in addition to the jars of PySpark."""
        return f"{self.jars}/spark/*:{self.jars}/s3/*"

    @property
    def logs(self) -> Path:
        return self.home / "log"

    @property
    def temporary(self) -> Path:
        """The directory for temporary files of processes."""
        return self.home / "tmp"

    @property
    def journals(self) -> Path:
        """The directory of the query progress that drivers write."""
        return self.home / "progress"

    @property
    def definitions(self) -> Path:
        """The directory of the last good definition of each table."""
        return self.home / "definitions"

    @property
    def pseudonym_key(self) -> Path:
        """The file with the key of pseudonyms, which a person writes."""
        return self.home / "pseudonyms.key"

    @property
    def schemas(self) -> Path:
        """The directory of the schemas that were read from registries."""
        return self.home / "schemas"

    def folder(self, path: str) -> str:
        """`path` below the landing folder; an absolute path or a URL stays as it is."""
        return _folder(path if path.startswith("/") or "://" in path else f"{self.landing}/{path}")


def from_environment(environment: dict[str, str]) -> Settings:
    """Settings from the `SLUICE_*` variables. Raises UsageError for an invalid value."""
    require_no_login(environment)
    home = Path(environment.get("SLUICE_HOME") or ROOT / "var").resolve()
    kafka_files = {
        (match[1] or "").lower(): Path(value).absolute()
        for name, value in environment.items()
        if value and (match := CLUSTER_VARIABLE.fullmatch(name))
    }
    return Settings(
        home=home,
        lake=_lake(environment.get("SLUICE_LAKE") or str(home / LAKE)),
        jars=Path(environment.get("SLUICE_JARS") or home / "jars").resolve(),
        landing=_folder(environment.get("SLUICE_LANDING") or str(home / "landing")),
        kafka=environment.get("SLUICE_KAFKA") or ("" if "" in kafka_files else "127.0.0.1:9092"),
        control_url=environment.get("SLUICE_CONTROL_URL") or f"sqlite:///{home / 'control.db'}",
        airflow_port=_port(environment, "SLUICE_AIRFLOW_PORT", 8080),
        lease_seconds=_lease_seconds(environment),
        # The variable that other OpenLineage producers read, too.
        lineage_url=environment.get("OPENLINEAGE_URL") or "",
        examples=_is_on(environment, "SLUICE_EXAMPLES"),
        four_eyes=_is_on(environment, "SLUICE_FOUR_EYES") if environment.get("SLUICE_FOUR_EYES") else None,
        admins=tuple((environment.get("SLUICE_ADMINS") or "").replace(",", " ").split()),
        fast_path=_is_on(environment, "SLUICE_FAST_PATH", "on"),
        dag_per_table=_is_on(environment, "SLUICE_DAG_PER_TABLE", "on"),
        log_format=_log_format(environment),
        sql_port=_optional_port(environment, "SLUICE_SQL_PORT"),
        connect_port=_optional_port(environment, "SLUICE_CONNECT_PORT"),
        s3_port=_optional_port(environment, "SLUICE_S3_PORT"),
        schema_registry=_registry(environment),
        schema_registry_credentials=_file(environment, "SLUICE_SCHEMA_REGISTRY_CREDENTIALS"),
        kafka_files=kafka_files,
        executors=_executors(environment),
        catch_up_seconds=_number(environment, "SLUICE_CATCH_UP_SECONDS", 600),
        rebalance=_is_on(environment, "SLUICE_REBALANCE", "off"),
        catalog_prefix=_catalog_prefix(environment),
        catalog_layers=_catalog_layers(environment),
        platform_name=environment.get("SLUICE_PLATFORM_NAME") or socket.gethostname(),
    )


def kafka_variables(config: Settings) -> dict[str, str]:
    """The variables by which another process finds the same Kafka clusters: addresses and paths, and no secret."""
    servers = {"SLUICE_KAFKA": config.kafka} if config.kafka else {}
    return servers | {cluster_variable(name): str(file) for name, file in config.kafka_files.items()}


def catalog_variables(config: Settings) -> dict[str, str]:
    """The variables by which another process registers the same tables."""
    if config.catalog_prefix is None:
        return {}
    catalog = f"glue:{config.catalog_prefix}" if config.catalog_prefix else "glue"
    return {"SLUICE_CATALOG": catalog, "SLUICE_CATALOG_LAYERS": " ".join(config.catalog_layers)}


def cluster_variable(name: str | None) -> str:
    """The variable with the properties file of a Kafka cluster; None: of the default one."""
    return f"SLUICE_KAFKA_{name.upper()}_CONFIG" if name else "SLUICE_KAFKA_CONFIG"


def _folder(path: str) -> str:
    return path.rstrip("/") if "://" in path else str(Path(path).absolute())


def _lake(value: str) -> str:
    if "://" not in value:
        return str(Path(value).resolve())
    # Hadoop calls the scheme s3a, others call it s3.
    scheme, bucket, path, query, fragment = urlsplit(value)
    if scheme == "file" and not bucket and path.startswith("/"):
        return str(Path(unquote(path)).resolve())
    key = path.strip("/")
    if scheme not in ("s3", "s3a") or not bucket or not key or query or fragment:
        raise UsageError(
            f"SLUICE_LAKE is {value!r}, which is no place for tables: set it to a path, to file:///PATH or to "
            f"s3a://BUCKET/PREFIX"
        )
    return f"s3a://{bucket}/{key}"


def _file(environment: dict[str, str], name: str) -> Path | None:
    return Path(environment[name]).absolute() if environment.get(name) else None


def _registry(environment: dict[str, str]) -> str:
    url = (environment.get("SLUICE_SCHEMA_REGISTRY") or "").rstrip("/")
    if not url:
        return ""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"SLUICE_SCHEMA_REGISTRY is {url!r}, which is no URL: set it to https://HOST:PORT, or unset it"
        )
    return url


def _number(environment: dict[str, str], name: str, default: float) -> float:
    value = environment.get(name) or str(default)
    try:
        number = float(value)
    except ValueError:
        number = 0
    # `number <= 0` would accept nan.
    if not 0 < number < math.inf:
        raise UsageError(
            f"{name} is {value!r}, which is not a number above 0: set it to one, or unset it for {default}"
        )
    return number


def _lease_seconds(environment: dict[str, str]) -> float:
    name = "SLUICE_LEASE_SECONDS"
    number = _number(environment, name, 30)
    if number < SHORTEST_LEASE_SECONDS:
        raise UsageError(
            f"{name} is {number:g}, which leaves a driver too little time to end itself before its lease is over: set "
            f"it to {SHORTEST_LEASE_SECONDS} or more, or unset it for 30"
        )
    return number


def _executors(environment: dict[str, str]) -> dict[str, tuple[int, int]]:
    bounds: dict[str, tuple[int, int]] = {}
    for word in (environment.get("SLUICE_EXECUTORS") or "").replace(",", " ").split():
        match = EXECUTORS.fullmatch(word)
        least, most = (int(match[2]), int(match[3])) if match else (0, 0)
        if not match or not 1 <= least <= most or match[1] in bounds:
            raise UsageError(
                f"SLUICE_EXECUTORS has {word!r}: write each driver once, with the fewest and the most executors, such "
                f"as main=1-3"
            )
        bounds[match[1]] = (least, most)
    return bounds


def _catalog_prefix(environment: dict[str, str]) -> str | None:
    value = environment.get("SLUICE_CATALOG") or ""
    match = GLUE.fullmatch(value)
    if value and not match:
        raise UsageError(
            f"SLUICE_CATALOG is {value!r}: set it to glue, or to glue:PREFIX for names of databases that begin with "
            f"PREFIX, in small letters, digits and _"
        )
    return match[1] or "" if match else None


def _catalog_layers(environment: dict[str, str]) -> tuple[str, ...]:
    value = environment.get("SLUICE_CATALOG_LAYERS") or "silver gold"
    words = value.replace(",", " ").split()
    if not words or set(words) - set(LAYERS):
        raise UsageError(f"SLUICE_CATALOG_LAYERS is {value!r}: name some of bronze, silver and gold, or unset it")
    return tuple(layer for layer in LAYERS if layer in words)


def _log_format(environment: dict[str, str]) -> str:
    value = environment.get("SLUICE_LOG_FORMAT") or "text"
    if value not in ("text", "json"):
        raise UsageError(f"SLUICE_LOG_FORMAT is {value!r}: set it to text or json")
    return value


def _is_on(environment: dict[str, str], name: str, default: str = "on") -> bool:
    value = environment.get(name) or default
    if value not in ("on", "off"):
        raise UsageError(f"{name} is {value!r}: set it to on or off")
    return value == "on"


def _port(environment: dict[str, str], name: str, default: int) -> int:
    value = environment.get(name) or str(default)
    port = int(value) if re.fullmatch("[0-9]{1,5}", value) else 0
    if not 0 < port < 2**16:
        raise UsageError(
            f"{name} is {value!r}, which is not a port from 1 to 65535: set it to one, or unset it"
            f"{f' for {default}' if default else ''}"
        )
    return port


def _optional_port(environment: dict[str, str], name: str) -> int | None:
    return _port(environment, name, 0) if environment.get(name) else None


@lru_cache
def settings() -> Settings:
    """The settings of this process."""
    return from_environment(dict(os.environ))
