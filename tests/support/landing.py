"""A landing folder of a test's own, and what became of its files."""

import json
import os
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.settings import settings
from include.spec import Files, Table
from tests.support.flows import rows_of

OWN = ("_filename", "_index", "_rescued_data")


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

    def table(self, format: str = "csv", schema: str | None = None, **source) -> Table:
        declared = {} if schema is None else {"schema": schema}
        return Table(
            name=f"bronze.{self.name}",
            comment="as it came",
            source=Files(self.path, format=format, **source),
            **declared,
        )

    def drop(self, file: str, content: bytes | str, date: datetime | None = None) -> Path:
        """By a rename, as one should."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        if date:
            os.utime(unfinished, (date.timestamp(), date.timestamp()))
        return unfinished.rename(path)

    def rows(self) -> dict[str, list[dict]]:
        """By file, its rows in their order, each without what has no value; what was rescued as a value."""
        found = defaultdict(list)
        for row in sorted(rows_of(f"bronze.{self.name}"), key=lambda row: (row["_filename"], row["_index"])):
            assert row["_index"] == len(found[row["_filename"]])
            values = {name: value for name, value in row.items() if name not in OWN and value is not None}
            if row["_rescued_data"] is not None:
                values["rescued"] = json.loads(row["_rescued_data"])
            found[row["_filename"]].append(values)
        return dict(found)

    def troubles(self) -> list[tuple[str, str]]:
        """File and kind of each row of the quarantine."""
        found = rows_of(f"quarantine.bronze_{self.name}")
        return sorted((row["_filename"], *row["_rules"]) for row in found)
