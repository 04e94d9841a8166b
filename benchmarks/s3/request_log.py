"""What the processes of a benchmark asked of the local S3 store, counted from the store's own access log."""

import re
from collections import Counter

from include.local.object_store import ObjectStore

# The operation's name in the log: the kind of request, as an invoice counts it.
KINDS = {
    "ListObjectsV2": "LIST",
    "GetObject": "GET",
    "HeadObject": "HEAD",
    "HeadBucket": "HEAD",
    "PutObject": "PUT",
    "CopyObject": "COPY",
    "DeleteObject": "DELETE",
    "DeleteObjects": "DELETE",
}
OPERATION = re.compile(r" s3_(\w+) ")


class RequestLog:
    def __init__(self, store: ObjectStore) -> None:
        self._file = store.access_log
        self._lines_read = 0

    def take(self) -> Counter[str]:
        """The requests since the last call, by kind."""
        lines = self._file.read_text().splitlines()
        new_lines, self._lines_read = lines[self._lines_read :], len(lines)
        return Counter(
            KINDS.get(found.group(1), found.group(1)) for line in new_lines if (found := OPERATION.search(line))
        )
