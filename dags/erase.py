"""Erases subjects that `sluice erase` has named, from all that the lake and the home hold.

Fill in the form (Trigger), or paste, after `source var/env.sh`:

    airflow dags trigger erase -c '{"number": 3}'

The form takes the number that `sluice erase` has printed, and no name: Airflow would keep it. `plan` shows from which
tables rows are erased. `approve` waits for a person, for 24 hours. `erase` is one spark-submit: late copies are caught
from then on, the rows are taken out of each table, files that held them are deleted, and a scan of all objects proves
that nothing is left. A red `erase`: its log names what is left. Cleared, it goes on where it ended.
"""

from include.airflow import erasure
from include.airflow.job_dag import SparkJob, Steps, job_dag

if erasure.TABLES:
    job_dag(
        __doc__,
        "erase",
        Steps(
            SparkJob("erase", "erase", lambda run: ["--number", str(run.planned)], retries=2),
            preview=lambda run: erasure.plan(run.form),
            question="Erase for good what erasure {{ params.number }} names?",
            check=lambda run: erasure.require_approved(run.planned, run.answer),
        ),
        erasure.TABLES[0],
        params=erasure.FORM,
    )
