"""Files of ORC."""

from collections.abc import Sequence

from pyarrow import fs, orc

from include.engine.files.formats.format import MOST_COLUMNS, FileHeader, require_distinct, too_many
from include.engine.files.formats.typed import TypedFormat
from include.spec import Files

# The length of a compressed chunk of ORC has 23 bits.
MOST_CHUNK_BYTES = 2**23


class Orc(TypedFormat):
    name = "orc"

    def head(self, system: fs.FileSystem, path: str, source: Files, declared: Sequence[str]) -> FileHeader:
        with system.open_input_file(path) as file:
            content = orc.ORCFile(file)
            if content.compression != "UNCOMPRESSED" and content.compression_size > MOST_CHUNK_BYTES:
                raise OSError(
                    f"it claims to be compressed in chunks of {content.compression_size:,} bytes, and "
                    f"{MOST_CHUNK_BYTES:,} are the most"
                )
            if not 0 <= content.content_length <= file.size():
                raise OSError("its footer claims stripes that are larger than the file")
            schema = content.schema.remove_metadata()
            if len(schema.names) > MOST_COLUMNS:
                raise OSError(too_many(len(schema.names)))
            require_distinct(schema.names)
            return FileHeader(path, schema.to_string())
