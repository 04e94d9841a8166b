"""What Spark asked of the local S3 store, counted from the store's own access log."""

import re
from collections import Counter

from include.local.object_store import ObjectStore

# The operation's name in the log: the kind of request, as an invoice counts it.
KINDS = {
    "ListObjectsV2": "LIST",
    "GetObject": "GET",
    "HeadObject": "HEAD",
    "PutObject": "PUT",
    "CopyObject": "COPY",
    "DeleteObject": "DELETE",
    "DeleteObjects": "DELETE",
}
OPERATION = re.compile(r" s3_(\w+) ")
# The user agent of delta-rs, which feeds the tables.
FEEDER = "object_store/"


class RequestLog:
    def __init__(self, store: ObjectStore) -> None:
        self._file = store.access_log
        self._lines_read = 0

    def take(self) -> Counter[str]:
        """The requests of Spark since the last call, by kind."""
        lines = self._file.read_text().splitlines()
        new_lines, self._lines_read = lines[self._lines_read :], len(lines)
        operations = [OPERATION.search(line) for line in new_lines if FEEDER not in line]
        return Counter(KINDS.get(found.group(1), found.group(1)) for found in operations if found)
