"""Whether a view can be refreshed at all, before a JVM is started for it."""

from collections.abc import Callable

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from include import catalog
from include.readers import refreshes


def skip_without_source(view: str) -> Callable[[Context], None]:
    """A table whose flow has yet to run is no failure of the view, however many nights it takes."""

    def check(_context: Context) -> None:
        table = catalog.load().table(view)
        if missing := refreshes.lacking([table]).get(view):
            raise AirflowSkipException(refreshes.not_refreshed(table, missing))

    return check
