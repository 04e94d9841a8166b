"""`refresh.<view>`: one DAG for each materialized view."""

from include import catalog


def test_every_view_has_its_dag_with_the_schedule_it_declares_and_no_other_table_has_one(dags):
    views = catalog.load().views
    assert {f"refresh.{name}" for name in views} == {name for name in dags if name.startswith("refresh.")}
    assert "gold.heart_rate_by_day" in views
    for view in views.values():
        dag = dags[f"refresh.{view.name}"]
        [task] = dag.tasks
        assert (dag.schedule, dag.max_active_runs, dag.catchup, task.durable) == (view.schedule, 1, False, False)
        assert task.application_args == ["--table", view.name, "--run", "{{ run_id }}"]
