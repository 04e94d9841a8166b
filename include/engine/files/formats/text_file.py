"""Opens files of text, whose names say how they are compressed."""

import re

import pyarrow as pa
from pyarrow import fs

# Compressions that Spark reads, by the ending of the name, each with the codec of Arrow.
CODECS = {".gz": "gzip", ".deflate": "gzip", ".bz2": "bz2", ".zst": "zstd"}
# Hadoop's own forms of these, which few programs write. A length in a file of another form ends the JVM.
REFUSED = (".lz4", ".snappy")
READ = "compress it as .gz, .bz2 or .zst"
# How files begin that are no text.
BEGINNINGS = {
    "compressed with gzip": rb"\x1f\x8b\x08",
    "compressed with bzip2": rb"BZh[1-9]1AY&SY",
    "compressed with Zstandard": rb"\x28\xb5\x2f\xfd",
    "compressed with LZ4": rb"\x04\x22\x4d\x18",
    "compressed with xz": rb"\xfd7zXZ\x00",
    "compressed with Snappy": rb"\xff\x06\x00\x00sNaPpY",
    "a ZIP archive": rb"PK(\x03\x04|\x05\x06)",
    "a 7z archive": rb"7z\xbc\xaf\x27\x1c",
    "a Parquet file": rb"PAR1[\x00-\x1f]",
    "an Avro file": rb"Obj\x01",
}
BEGINNING_BYTES = 10
# A bzip2 stream ends with this mark and a checksum of 32 bits, which begin at any bit of a byte.
END_OF_BZIP2, END_BYTES = 0x177245385090, 11
ENDINGS = {"compressed with gzip": ".gz", "compressed with bzip2": ".bz2", "compressed with Zstandard": ".zst"}


def open_text(system: fs.FileSystem, path: str) -> pa.NativeFile:
    """Opens the uncompressed text. Raises OSError with a sentence if it is no text, or compressed in another way."""
    ending = next((ending for ending in (*CODECS, *REFUSED) if path.lower().endswith(ending)), "")
    if ending in REFUSED:
        raise OSError(f"files that end with {ending} are not read: {READ}")
    with system.open_input_stream(path, compression=None) as stream:
        begin = stream.read(BEGINNING_BYTES)
    content = next((words for words, pattern in BEGINNINGS.items() if re.match(pattern, begin)), "")
    if ending and begin and ENDINGS.get(content) != ending and ending != ".deflate":
        content = content or "not so compressed"
        raise OSError(f"its name ends with {ending}, and it is {content}: name it as what it is")
    if not ending and content:
        remedy = f"let its name end with {ENDINGS[content]}" if content in ENDINGS else "give its text as a file"
        raise OSError(f"it is {content}: {remedy}")
    if ending == ".bz2" and begin:
        with system.open_input_file(path) as file:
            file.seek(max(0, file.size() - END_BYTES))
            # Spark reads a file that ends behind one of its blocks, as if no other had followed.
            if not _is_end_of_bzip2(file.read()):
                raise OSError("its bzip2 stream has no end: it is cut off, or followed by something else")
    stream = system.open_input_stream(path, compression=None)
    # An empty file has nothing to decompress.
    return pa.CompressedInputStream(stream, CODECS[ending]) if ending and begin else stream


def _is_end_of_bzip2(last: bytes) -> bool:
    bits = int.from_bytes(last, "big")
    return any(bits >> (32 + padding) & (2**48 - 1) == END_OF_BZIP2 for padding in range(8))
