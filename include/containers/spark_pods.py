"""The commands of Spark's pods on Kubernetes, which Spark's own image has in its entry point.

Spark says `driver` with options of spark-submit, or `executor`, and all else in variables.
"""

import re
from collections.abc import Callable, Mapping

from include.local import artifacts, java

OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
# Spark reads the file of spark.authenticate.secret.file on Kubernetes only, and does not tell executors where they are.
PLACE = "-Dspark.master=k8s://driver"
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


def driver(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """spark-submit for the driver that this pod is."""
    address = variables["SPARK_DRIVER_BIND_ADDRESS"]
    return [
        *("spark-submit", "--deploy-mode", "client"),
        *("--conf", f"spark.driver.bindAddress={address}"),
        *("--conf", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}"),
        *words,
    ]


def executor(_words: list[str], variables: Mapping[str, str]) -> list[str]:
    """The JVM of the executor that this pod is."""
    numbered = {int(match[1]): value for name, value in variables.items() if (match := OPTION.fullmatch(name))}
    memory = variables["SPARK_EXECUTOR_MEMORY"]
    class_path = ":".join(filter(None, (variables.get("SPARK_CLASSPATH"), f"{artifacts.pyspark_jars()}/*")))
    return [
        str(java.home() / "bin" / "java"),
        *(numbered[number] for number in sorted(numbered)),
        PLACE,
        *(f"-Xms{memory}", f"-Xmx{memory}", "-cp", class_path, BACKEND),
        *("--driver-url", variables["SPARK_DRIVER_URL"]),
        *("--executor-id", variables["SPARK_EXECUTOR_ID"]),
        *("--cores", variables["SPARK_EXECUTOR_CORES"]),
        *("--app-id", variables["SPARK_APPLICATION_ID"]),
        *("--hostname", variables["SPARK_EXECUTOR_POD_IP"]),
        *("--resourceProfileId", variables["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", variables["SPARK_EXECUTOR_POD_NAME"]),
    ]


COMMANDS: dict[str, Callable[[list[str], Mapping[str, str]], list[str]]] = {"driver": driver, "executor": executor}
