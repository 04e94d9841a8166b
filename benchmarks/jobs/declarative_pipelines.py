"""One run of Spark Declarative Pipelines over benchmarks/jobs/pipelines: the peer of benchmarks.jobs.sluice --once."""

import os
import shutil
import sys
from pathlib import Path

from benchmarks.jobs.sluice import parser
from include.settings import ROOT, settings

# JSON, a subset of YAML.
SPEC = """{{
  "name": "readings", "storage": "file://{home}/pipeline", "catalog": "spark_catalog", "database": "default",
  "libraries": [{{"glob": {{"include": "transformations/**"}}}}],
  "configuration": {{"sluice.benchmark.kafka": "{kafka}", "sluice.benchmark.topic": "{topic}"}}
}}
"""
DEFAULTS = """spark.driver.extraClassPath {jars}/spark/*
spark.sql.extensions io.delta.sql.DeltaSparkSessionExtension
spark.sql.catalog.spark_catalog org.apache.spark.sql.delta.catalog.DeltaCatalog
spark.sql.warehouse.dir {home}/lake
"""


def main() -> None:
    arguments = parser().parse_args()
    home = settings().home
    (home / "conf").mkdir()
    shutil.copytree(ROOT / "benchmarks" / "jobs" / "pipelines", home / "transformations")
    (home / "conf" / "spark-defaults.conf").write_text(DEFAULTS.format(jars=settings().jars, home=home))
    spec = home / "spark-pipeline.yml"
    spec.write_text(SPEC.format(home=home, kafka=settings().kafka, topic=arguments.topic))
    os.environ |= {"SPARK_CONF_DIR": str(home / "conf"), "PYSPARK_PYTHON": sys.executable}
    command = str(Path(sys.executable).parent / "spark-pipelines")
    os.execv(command, [command, "run", "--spec", str(spec)])


if __name__ == "__main__":
    main()
