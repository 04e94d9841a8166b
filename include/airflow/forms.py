"""The values of a form, checked where they are used.

Airflow checks them by the same schema, when a run is triggered and when a task starts. Whoever calls the functions of a
DAG without Airflow gets the same sentences.
"""

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

MOST_CHARACTERS = 2_000
# Text that is not blank.
TEXT: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MOST_CHARACTERS, "pattern": r"\S"}
OPTIONAL_TEXT: dict[str, Any] = {"type": "string", "maxLength": MOST_CHARACTERS}
MOST_SHOWN = 80


def checked(form: Mapping[str, Any], params: Mapping[str, Param]) -> dict[str, Any]:
    """The form, with the default of each value that is missing. Raises AirflowFailException for a wrong value."""
    values = {name: form.get(name, param.value if param.has_value else None) for name, param in params.items()}
    for name, param in params.items():
        try:
            # A copy: the parameter would take over the value.
            Param(values[name], **param.schema).resolve()
        except ParamValidationError as error:
            shown, problem = _shortened(repr(values[name])), _shortened(str(error).splitlines()[0])
            raise AirflowFailException(f"{name} is {shown}: {problem}; correct it, and trigger a new run") from error
    return {**form, **values}


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
