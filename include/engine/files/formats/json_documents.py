"""Divides a file into its JSON documents, each as the bytes that it holds. Spark's Python processes import this module.

Spark's own reader of such files rewrites numbers, and drops what follows the first document.
"""

import re

import pyarrow as pa

# A string, whose brackets do not count, or a sign that may begin or end a document.
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
BLANKS = b" \t\r\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def of_files(contents: pa.Array) -> pa.Array:
    """Returns the documents of each file. The function of an `arrow_udf`."""
    return pa.array([of_bytes(content) for content in contents.to_pylist()], pa.list_(pa.binary()))


def of_bytes(content: bytes) -> list[bytes]:
    """Returns the documents, one after another or in arrays, and what is none as a document of its own."""
    documents: list[bytes] = []
    begin = len(BYTE_ORDER_MARK) if content.startswith(BYTE_ORDER_MARK) else 0
    depth, is_in_array = 0, False
    for token in TOKEN.finditer(content, begin):
        sign, at = token[0], token.start()
        if sign in (b"[", b"{"):
            if sign == b"[" and depth == 0 and not is_in_array and not content[begin:at].strip(BLANKS):
                is_in_array, begin = True, at + 1
            else:
                depth += 1
        elif sign in (b"]", b"}") and depth:
            depth -= 1
            if depth == 0 and not is_in_array:
                documents.append(content[begin : token.end()])
                begin = token.end()
        elif sign in (b"]", b",") and depth == 0 and is_in_array:
            documents.append(content[begin:at])
            is_in_array, begin = sign == b",", token.end()
    documents.append(content[begin:])
    return [document for part in documents if (document := part.strip(BLANKS))]
