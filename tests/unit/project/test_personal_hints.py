"""`make check` hints at columns that look personal, and are not declared."""

from dataclasses import replace

from include.project import personal
from include.spec import Delta, Table

CUSTOMERS = Table(
    name="silver.customers",
    comment="customers",
    source=Delta("bronze.customers"),
    schema="id BIGINT, email STRING, home STRUCT<city: STRING, street: STRING>, since DATE",
)
BRONZE = Table(name="bronze.customers", comment="customers", source=Delta("bronze.raw"), schema="id BIGINT")
TABLES = {"bronze.customers": BRONZE}
PERSONAL = """
    email e_mail userEmail customer_phone first_name lastName full_name name IBAN ip ip_address clientIp birth_date
    dateOfBirth Geburtsdatum vorname telefon_privat rue zip_code nombre_cliente voornaam street home.street
"""
OTHERS = """
    id amount product_name topic_name file_name hostname host_address mac_address country created_at ship shipped
    description zipped table_name nombre_de_lignes recipe bank memory_address model currency
"""


def test_names_of_personal_data_are_noticed_in_several_languages():
    names = PERSONAL.split()
    assert [name for name in names if not personal.looks_personal(name)] == []


def test_other_names_are_not():
    names = OTHERS.split()
    assert [name for name in names if personal.looks_personal(name)] == []


def test_one_sentence_names_all_columns_of_a_table_and_says_what_to_write():
    [sentence] = personal.hints(CUSTOMERS, TABLES)
    assert sentence.startswith("silver.customers: email, home.street may be personal data: write personal=('email',)")
    assert "not_personal=('email',)" in sentence


def test_what_is_declared_is_hinted_at_no_more():
    assert personal.hints(replace(CUSTOMERS, personal=("email",), not_personal=("home",)), TABLES) == []


def test_a_column_that_is_personal_in_the_table_above_is_hinted_at():
    above = {"bronze.customers": replace(BRONZE, schema="id BIGINT, since DATE", personal=("since",))}
    [sentence] = personal.hints(replace(CUSTOMERS, personal=("email", "home")), above)
    assert sentence.startswith("silver.customers: since may be personal data")
