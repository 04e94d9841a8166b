"""Properties files of Kafka clusters are read as Java reads them."""

import javaproperties
import pytest

from include.engine.session import jvm_of


@pytest.fixture
def read_in_java(spark):
    """Returns what `java.util.Properties` reads from a file with this text."""

    def read(text: str) -> dict[str, str]:
        properties = jvm_of(spark).java.util.Properties()
        properties.load(jvm_of(spark).java.io.ByteArrayInputStream(text.encode("iso-8859-1")))
        return dict(properties)

    return read


def test_every_notation_of_a_properties_file_is_read_as_java_reads_it(read_in_java):
    text = (
        "# comment\n! comment\n\n  indented = value \t\nno.separator\nblank separator\ncolon:x:y\r\nequals==\n"
        'continued=one, \\\n    two \\\r\n  # no comment\nescapes=\\t\\n\\r\\f\\\\\\"\\u00e4\\:\\=\\q\n'
        "key\\ with\\=all\\:=1\nlatin=\xe4\nbackslashes=\\\\\\\\\nempty=\nrepeated=1\nrepeated=2\n"
        "smile=\\ud83d\\ude00\n"
        'jaas=org.Plain required \\\n  username="u" password="a\\\\\\"b";\nends.open=x\\'
    )
    assert javaproperties.loads(text) == read_in_java(text)


def test_every_value_is_written_so_that_java_reads_it_back(read_in_java):
    values = {
        "plain": "a b=c:d#e!f",
        "blank": "  x ",
        "escapes": "\\ \\n \n\r\t \"'",
        "unicode": "ä € \U0001f600",
        "empty": "",
        "hash": "#x",
    }
    text = javaproperties.dumps(values)
    assert read_in_java(text) == javaproperties.loads(text) == values
