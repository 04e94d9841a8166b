"""Names of earlier versions of `include.airflow`, as crontabs, compose files and Airflow's database hold them."""
