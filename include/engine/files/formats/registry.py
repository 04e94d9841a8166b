"""Which module reads which format of files."""

from include.engine.files.formats.avro import Avro
from include.engine.files.formats.csv import Csv
from include.engine.files.formats.fixed_width import FixedWidth
from include.engine.files.formats.format import Format
from include.engine.files.formats.json import Json
from include.engine.files.formats.orc import Orc
from include.engine.files.formats.parquet import Parquet
from include.engine.files.formats.text import Text
from include.spec import Files

# By the name of `include.spec.FORMATS`.
FORMATS: dict[str, Format] = {
    "csv": Csv(),
    "json": Json(),
    "text": Text(),
    "parquet": Parquet(),
    "orc": Orc(),
    "avro": Avro(),
    "fixed_width": FixedWidth(),
}


def of(source: Files) -> Format:
    return FORMATS[source.format]
