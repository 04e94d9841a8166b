"""Serve all stored tables by name, read-only: spark-submit jobs/sql_server.py

SQL clients connect by JDBC to jdbc:hive2://127.0.0.1:$SLUICE_SQL_PORT, Spark sessions to
sc://127.0.0.1:$SLUICE_CONNECT_PORT; at least one of the two is set. `make up` starts this job if one is set. It serves
until it is ended. Exit code 2: neither is set.
"""

import argparse

from include import logs
from include.engine import sql_server
from include.errors import UsageError, report
from include.settings import settings


def main() -> None:
    parser = argparse.ArgumentParser(prog="sql_server.py", description=__doc__.splitlines()[0])
    parser.parse_args()
    logs.start()
    if not (settings().sql_port or settings().connect_port):
        raise UsageError("SLUICE_SQL_PORT and SLUICE_CONNECT_PORT are not set: set one or both to a free port")
    sql_server.serve()


if __name__ == "__main__":
    report(main)
