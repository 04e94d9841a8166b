"""The classes of a table file: plain frozen values that Airflow, Spark, tests and the console can import.

A file `include/tables/<layer>/<name>.py` binds one `Table` to the name `TABLE`. `include.catalog` checks it.
"""

from include.layers import LAYERS as LAYERS
from include.rules import Expect as Expect
from include.rules import References as References
from include.rules import Rule as Rule
from include.rules import Unique as Unique
from include.spec.origin import BINARY_FORMS as BINARY_FORMS
from include.spec.origin import CHANGE_SCHEMA as CHANGE_SCHEMA
from include.spec.origin import EVOLUTIONS as EVOLUTIONS
from include.spec.origin import FILES_SCHEMA as FILES_SCHEMA
from include.spec.origin import FORMATS as FORMATS
from include.spec.origin import INTEGER_TIMES as INTEGER_TIMES
from include.spec.origin import KAFKA_SCHEMA as KAFKA_SCHEMA
from include.spec.origin import KAFKA_SCHEMA_WITH_IDS as KAFKA_SCHEMA_WITH_IDS
from include.spec.origin import NEW_COLUMNS as NEW_COLUMNS
from include.spec.origin import AnySource as AnySource
from include.spec.origin import Avro as Avro
from include.spec.origin import Cast as Cast
from include.spec.origin import Debezium as Debezium
from include.spec.origin import Delta as Delta
from include.spec.origin import FileFormat as FileFormat
from include.spec.origin import Files as Files
from include.spec.origin import Json as Json
from include.spec.origin import Kafka as Kafka
from include.spec.origin import Parse as Parse
from include.spec.origin import Registry as Registry
from include.spec.origin import Source as Source
from include.spec.table import Flow as Flow
from include.spec.table import Lookup as Lookup
from include.spec.table import Maintenance as Maintenance
from include.spec.table import PythonLimits as PythonLimits
from include.spec.table import Step as Step
from include.spec.table import Table as Table
from include.spec.table import Transform as Transform
from include.spec.table import Via as Via
from include.spec.table import View as View
from include.spec.table import table_of as table_of
from include.spec.write_mode import BUCKET_UNITS as BUCKET_UNITS
from include.spec.write_mode import CHANGE_RULE as CHANGE_RULE
from include.spec.write_mode import FLAG_RULE as FLAG_RULE
from include.spec.write_mode import LATE_ACTIONS as LATE_ACTIONS
from include.spec.write_mode import SEQUENCE_RULE as SEQUENCE_RULE
from include.spec.write_mode import Append as Append
from include.spec.write_mode import Bucket as Bucket
from include.spec.write_mode import Replace as Replace
from include.spec.write_mode import Upsert as Upsert
from include.spec.write_mode import Watermark as Watermark
from include.spec.write_mode import WriteMode as WriteMode
