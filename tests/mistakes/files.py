"""Wrong folders of files that fill a bronze table."""

from dataclasses import replace

from include.spec import Append, Cast, Files, Kafka
from tests.mistakes.case import BILLS, EVENTS, case

CASES = (
    case(
        "files_below_a_glob",
        replace(BILLS, source=Files("bills/2019-*", format="csv")),
        "bronze/bills.py: path 'bills/2019-*' is a pattern: name one folder, and say pattern= for its files",
    ),
    case(
        "files_beside_kafka",
        replace(EVENTS, source={"live": Kafka("events"), "files": Files("events", format="json")}),
        "bronze/events.py: Files stands beside other sources, and its columns come and go with its files: let it "
        "fill a table of its own, and read that",
    ),
    case(
        "files_in_silver",
        replace(BILLS, name="silver.bills"),
        "silver/bills.py: only bronze reads files, so that what arrived is kept as it arrived: read a bronze table",
    ),
    case(
        "files_of_an_unknown_format",
        replace(BILLS, source=Files("bills", format="cvs")),
        "bronze/bills.py: format is 'cvs': did you mean 'csv'?",
    ),
    case(
        "files_of_fixed_width_without_widths",
        replace(BILLS, source=Files("bills", format="fixed_width")),
        "bronze/bills.py: format is fixed_width, and widths is empty: name its columns in order, "
        "widths={'account': 10}",
    ),
    case(
        "files_of_fixed_width_with_a_column_of_nothing",
        replace(BILLS, source=Files("bills", format="fixed_width", widths={"account": 0})),
        "bronze/bills.py: widths['account'] is 0: set it to a whole number above 0",
    ),
    case(
        "files_of_csv_with_widths",
        replace(BILLS, source=Files("bills", format="csv", widths={"account": 10})),
        "bronze/bills.py: widths is set, and csv has none: leave it out",
    ),
    case(
        "files_of_json_without_a_header",
        replace(BILLS, source=Files("bills", format="json", header=False)),
        "bronze/bills.py: header=False, and json has no header: leave it out",
    ),
    case(
        "files_of_json_with_a_separator",
        replace(BILLS, source=Files("bills", format="json", separator=";")),
        "bronze/bills.py: separator is ';', and json has none: leave it out",
    ),
    case(
        "files_of_csv_with_a_long_separator",
        replace(BILLS, source=Files("bills", format="csv", separator="||")),
        "bronze/bills.py: separator is '||': it has to be one ASCII character, such as ';'",
    ),
    case(
        "files_of_csv_with_a_separator_that_quotes",
        replace(BILLS, source=Files("bills", format="csv", separator=";", comment=";")),
        "bronze/bills.py: separator and comment are both ';': they have to differ",
    ),
    case(
        "files_of_csv_with_several_lines",
        replace(BILLS, source=Files("bills", format="csv", multi_line=True)),
        "bronze/bills.py: multi_line=True, which is for JSON, and its format is csv: leave it out",
    ),
    case(
        "files_with_a_parse",
        replace(
            BILLS, parse=Cast(into=("day",)), schema="day DATE, _errors ARRAY<STRUCT<field: STRING, message: STRING>>"
        ),
        "bronze/bills.py: parse would alter what arrived, and bronze keeps it as it came: put it on the silver table",
    ),
    case(
        "files_with_a_path_as_pattern",
        replace(BILLS, source=Files("bills", format="csv", pattern="2019/*.csv")),
        "bronze/bills.py: pattern is '2019/*.csv': it has to match names of files, such as '*.csv'",
    ),
    case(
        "files_with_a_wide_pattern",
        replace(BILLS, source=Files("bills", format="csv", pattern="*.{csv,txt}")),
        "bronze/bills.py: pattern is '*.{csv,txt}': use * and ? alone",
    ),
    case(
        "files_with_an_unknown_mode",
        replace(BILLS, source=Files("bills", format="csv", new_columns="rescued")),
        "bronze/bills.py: new_columns is 'rescued': did you mean 'rescue'?",
    ),
    case(
        "files_with_their_own_columns",
        replace(BILLS, schema="day STRING, _filename STRING"),
        "bronze/bills.py: '_filename' is a column that every table of files has: take it out of its schema",
    ),
    case(
        "files_with_types",
        replace(BILLS, schema="day STRING, what_it_cost DECIMAL(10,2)"),
        "bronze/bills.py: column 'what_it_cost' is declared DECIMAL, and CSV is kept as text: declare it STRING, "
        "and type it in silver with parse=Cast(...)",
    ),
    case(
        "files_with_unique",
        replace(BILLS, schema="day STRING", write=Append(unique=("day",))),
        "bronze/bills.py: unique would alter what arrived, and bronze keeps it as it came: put it on the silver table",
    ),
    case(
        "files_without_a_folder",
        replace(BILLS, source=Files("", format="csv")),
        "bronze/bills.py: path is '': name the folder in which the files land",
    ),
)
