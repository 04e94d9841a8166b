"""Files of Parquet."""

from collections.abc import Sequence

from pyarrow import fs, parquet
from pyspark.sql import DataFrame

from include.engine.files.formats import parquet_pages
from include.engine.files.formats.format import MOST_COLUMNS, PATH, FileHeader, require_distinct, too_many
from include.engine.files.formats.typed import TypedFormat, nanoseconds
from include.spec import Files

# Codecs of Parquet for which this Spark has no library, by their number in the format.
UNREAD_CODECS = {3: "LZO", 4: "BROTLI"}


class Parquet(TypedFormat):
    name = "parquet"

    def head(self, system: fs.FileSystem, path: str, source: Files, declared: Sequence[str]) -> FileHeader:
        metadata = parquet.read_metadata(path, filesystem=system)
        if not metadata.num_columns:
            raise OSError("it has no columns")
        if metadata.num_columns > MOST_COLUMNS:
            raise OSError(too_many(metadata.num_columns))
        with system.open_input_file(path) as file:
            columns = parquet_pages.columns(file)
            if any(not 0 <= column.bytes <= file.size() for column in columns):
                raise OSError("its footer names columns that are larger than the file")
            if unread := sorted({UNREAD_CODECS[column.codec] for column in columns if column.codec in UNREAD_CODECS}):
                raise OSError(
                    f"its columns are compressed with {unread[0]}, which is not read: write it with zstd or gzip"
                )
            # In a store, each page would cost a request.
            for column in columns if isinstance(system, fs.LocalFileSystem) else ():
                parquet_pages.require_bounds(file, column)
        schema = metadata.schema.to_arrow_schema().remove_metadata()
        require_distinct(schema.names)
        times = frozenset(place for field in schema for place in nanoseconds(field.type, (field.name,)))
        return FileHeader(path, (str(schema), times), nanoseconds=times)

    def numbered(self, rows: DataFrame) -> DataFrame:
        metadata = rows.metadataColumn("_metadata")
        return rows.select("*", metadata["file_path"].alias(PATH), metadata["row_index"].alias("_index"))
