"""The landing folder of a test, and the rows of its files."""

import json
import os
import shutil
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.settings import settings
from include.spec import Files, Flow, Table
from tests.support.flows import rows_of

METADATA_COLUMNS = ("_filename", "_index", "_rescued_data")


@dataclass(frozen=True)
class Landing:
    """Files for `bronze.<name>`."""

    name: str

    @property
    def path(self) -> str:
        return self.name

    @property
    def folder(self) -> Path:
        return Path(settings().folder(self.path))

    def remove(self) -> None:
        """Removes a folder of odd names, because other tests list the home."""
        shutil.rmtree(os.fsencode(self.folder), ignore_errors=True)

    def table(self, format: str = "csv", schema: str | None = None, **source) -> Table:
        declared = {} if schema is None else {"schema": schema}
        return Flow(
            name=f"bronze.{self.name}",
            comment="as it came",
            source=Files(self.path, format=format, **source),
            **declared,
        )

    def drop(self, file: str, content: bytes | str, date: datetime | None = None) -> Path:
        """Write a file and rename it into place."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary_file = path.with_name(f".{path.name}")
        temporary_file.write_bytes(content.encode() if isinstance(content, str) else content)
        if date:
            os.utime(temporary_file, (date.timestamp(), date.timestamp()))
        return temporary_file.rename(path)

    def rows(self) -> dict[str, list[dict]]:
        """The rows by file, in order, without NULL values. `rescued` holds the parsed `_rescued_data`."""
        rows_by_file = defaultdict(list)
        for row in sorted(rows_of(f"bronze.{self.name}"), key=lambda row: (row["_filename"], row["_index"])):
            assert row["_index"] == len(rows_by_file[row["_filename"]])
            values = {name: value for name, value in row.items() if name not in METADATA_COLUMNS and value is not None}
            if row["_rescued_data"] is not None:
                values["rescued"] = json.loads(row["_rescued_data"])
            rows_by_file[row["_filename"]].append(values)
        return dict(rows_by_file)

    def quarantined(self) -> list[tuple[str, str]]:
        """The file and the broken rules of each row in the quarantine."""
        quarantined = rows_of(f"quarantine.bronze_{self.name}")
        return sorted((row["_filename"], *row["_rules"]) for row in quarantined)
