"""Checks which columns a table declares as personal, and finds columns whose names look so and are not declared."""

import re
from collections.abc import Iterator
from itertools import pairwise

from include.project.declaration import declaration_error, suggest
from include.spec import Table, ddl
from include.spec.origin import ORIGIN

# Words of column names, in English, German, French, Spanish, Italian and Dutch.
PERSONAL = re.compile(
    "e?mail|courriel|correo|phone|telephone|mobile|telefono?|telefoon|tel|handynummer|msisdn|fax"
    "|(?:full|first|last|sur)name|vorname|nachname|prenom|apellidos?|cognome|voornaam|achternaam"
    "|address|adresse|adres|anschrift|direccion|indirizzo|street|strasse|rue|calle|post(?:code|leitzahl)|zip(?:code)?|plz"
    "|birth(?:day|date|place)?|dob|geburts(?:datum|tag|ort)|naissance|nacimiento|nascita|geboortedatum"
    "|iban|bic|ip(?:address|v4|v6)?|ssn|passport|passeport|pasaporte|ausweisnummer|steuernummer|nif"
    "|gender|geschlecht|sexe|sexo|religion|fingerprint|passwor[dt]"
)
NAME = re.compile("name|nom|nombre")
# Words of persons, beside which a name is one of a person.
PERSON = re.compile(
    "first|last|full|given|family|middle|maiden|user|customer|client|person|contact|holder|owner|employee|patient"
    "|member|guest|passenger|kunden?|benutzer|inhaber|utilisateur|usuario|cliente|utente|klant"
)
# Words beside which an address is none of a person.
OF_MACHINES = re.compile("host|server|broker|topic|table|file|column|mac|memory|bucket")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+[0-9]*|[0-9]+")


def check(table: Table) -> None:
    """Raises DeclarationError for the first wrong name."""
    for option in ("personal", "not_personal", "pseudonymise"):
        names = getattr(table, option)
        for name in names:
            if problem := _problem(name, table.schema, name):
                raise declaration_error(table, f"{option} names '{name}', {problem}")
            if list(names).count(name) > 1:
                raise declaration_error(table, f"{option} names '{name}' twice: take one out")
    for name in table.personal:
        if name in ORIGIN:
            raise declaration_error(
                table,
                f"personal names '{name}', by which people find a row again, and which is always shown: take it out",
            )
        if name in table.not_personal:
            raise declaration_error(table, f"personal and not_personal both name '{name}': take it out of one")


def check_pseudonyms(table: Table) -> None:
    """Raises DeclarationError for a table that cannot store pseudonyms, or a column that cannot be one."""
    if not table.pseudonymise:
        return
    kind = next((kind for kind, is_of_kind in _without_pseudonyms(table).items() if is_of_kind), None)
    if kind:
        raise declaration_error(
            table, f"pseudonymise is set, and {kind}: let a table that appends or upserts rows do it, and read that"
        )
    types = ddl.definitions(table.schema)
    for name in table.pseudonymise:
        if types.get(name, "").upper() != "STRING":
            raise declaration_error(
                table, f"pseudonymise names '{name}', which is {types.get(name, 'a field')}: name a STRING column"
            )
        if name == table.write.sequence_by:
            raise declaration_error(
                table, f"pseudonymise names '{name}', which orders changes, and pseudonyms have no order: take it out"
            )


def _without_pseudonyms(table: Table) -> dict[str, bool]:
    """By what keeps a table from storing pseudonyms, whether that is so."""
    return {
        "bronze keeps each record as it arrived": table.layer == "bronze",
        "a view is computed from what is stored": table.is_view,
        "a temporary step stores nothing": table.temporary,
        "an aggregate is computed from what is stored": table.is_recomputed,
    }


def _problem(path: str, schema: str, whole: str) -> str | None:
    """Returns what is wrong with the path of a column or field, and what to do. whole: the path from the column on."""
    types = ddl.definitions(schema)
    # A column of a file may have a dot in its name.
    if path in types:
        return None
    first, _, rest = path.partition(".")
    if first not in types:
        above = whole.removesuffix(f".{path}")
        what = "column of its schema" if path == whole else f"field of '{above}'"
        return f"no {what}: {suggest(first, list(types))}"
    inside = ddl.fields(types[first])
    if inside is None:
        above = whole.removesuffix(f".{rest}")
        return f"and '{above}' is {types[first]}, which has no fields: write '{above}'"
    return _problem(rest, inside, whole)


def hints(table: Table, tables: dict[str, Table]) -> list[str]:
    """Returns a sentence for the columns that look personal, by their names or because a table that it reads declares
    them so. tables: by name.
    """
    declared = {*table.personal, *table.not_personal, *table.pseudonymise}
    above = {name for source in table.upstream if source.table in tables for name in tables[source.table].personal}
    names = [
        path
        for path in _paths(table.schema, "")
        if not any(path == name or path.startswith(f"{name}.") for name in declared)
        and (path in above or looks_personal(path))
    ]
    if not names:
        return []
    listed, first = ", ".join(names), names[0]
    return [
        f"{table.name}: {listed} may be personal data: write personal=('{first}',), which hides it in pages, samples "
        f"and logs, or not_personal=('{first}',)"
    ]


def _paths(schema: str, prefix: str) -> Iterator[str]:
    for name, type_ in ddl.definitions(schema).items():
        path = f"{prefix}{name}"
        if path in ORIGIN:
            continue
        inside = ddl.fields(type_)
        if inside is None or looks_personal(path):
            yield path
        else:
            yield from _paths(inside, f"{path}.")


def looks_personal(path: str) -> bool:
    """Whether the last part of the path has a name as columns with personal data have."""
    words = [word.lower() for word in WORD.findall(path.rpartition(".")[2])]
    if any(map(OF_MACHINES.fullmatch, words)):
        return False
    pairs = ("".join(pair) for pair in pairwise(words))
    if any(map(PERSONAL.fullmatch, (*words, *pairs))):
        return True
    return any(map(NAME.fullmatch, words)) and (len(words) == 1 or any(map(PERSON.fullmatch, words)))
