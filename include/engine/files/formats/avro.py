"""Files of Avro, each with its schema."""

from collections.abc import Sequence

from pyarrow import fs

from include.engine.files.formats import avro_header
from include.engine.files.formats.format import FileHeader, require_distinct
from include.engine.files.formats.typed import TypedFormat
from include.spec import Files


class Avro(TypedFormat):
    name = "avro"

    def head(self, system: fs.FileSystem, path: str, source: Files, declared: Sequence[str]) -> FileHeader:
        with system.open_input_file(path) as file:
            # In a store, each block would cost a request.
            header = avro_header.read(file, checks_blocks=isinstance(system, fs.LocalFileSystem))
        require_distinct(header.names)
        return FileHeader(path, header.schema, nanoseconds=header.nanoseconds)
