"""Checks whether a view can be refreshed, before a JVM is started for it."""

from collections.abc import Callable

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from include import catalog
from include.readers import refreshes


def skip_without_source(view: str) -> Callable[[Context], None]:
    """A callback that skips the task while a source table is not stored yet, which is no failure of the view."""

    def check(_context: Context) -> None:
        table = catalog.load().table(view)
        if missing := refreshes.missing_sources([table]).get(view):
            raise AirflowSkipException(refreshes.not_refreshed_words(table, missing))

    return check
