"""Checks the rules and the watermark of a table, and writes the sentence for each mistake."""

from include.rules import ACTIONS, Expect, References, Rule
from include.spec import LATE_ACTIONS, Append, Table, Watermark, ddl
from include.validation.declaration import declaration_error, suggest


def check(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError for the first wrong rule. All tables have passed the checks of single tables."""
    if table.expect and table.is_recomputed:
        raise declaration_error(table, "expectations stand on a recomputed aggregate: put them on the table it reads")
    for rule in table.expect:
        _check_rule(table, rule)
        if isinstance(rule, References):
            _check_reference(table, rule, tables)
    if table.watermark:
        _check_watermark(table, table.watermark)


def _check_rule(table: Table, rule: Rule) -> None:
    if not rule.name.strip():
        raise declaration_error(table, "a rule has no name, and status and quarantine call it by that: give it one")
    if isinstance(rule, Expect) and not rule.condition.strip():
        raise declaration_error(table, f"rule '{rule.name}' has no condition: write one, such as 'amount > 0'")
    if rule.otherwise not in ACTIONS:
        raise declaration_error(
            table, f"rule '{rule.name}' says otherwise='{rule.otherwise}': {suggest(rule.otherwise, list(ACTIONS))}"
        )
    names = [other.name for other in table.expect]
    if names.count(rule.name) > 1:
        raise declaration_error(table, f"two rules are called '{rule.name}': give each a name of its own")
    if table.watermark and rule.name in (table.watermark.rule, table.watermark.ahead_rule):
        raise declaration_error(table, f"a rule is called '{rule.name}', as late rows are: give it another name")
    columns = ddl.columns(table.schema)
    for column in rule.columns:
        if column not in columns:
            raise declaration_error(
                table, f"rule '{rule.name}' names '{column}', no column of its schema: {suggest(column, columns)}"
            )


def _check_reference(table: Table, rule: References, tables: dict[str, Table]) -> None:
    keys = ddl.columns(tables[rule.table].schema)
    if rule.key not in keys:
        raise declaration_error(
            table, f"rule '{rule.name}' looks for '{rule.key}', no column of {rule.table}: {suggest(rule.key, keys)}"
        )


def _check_watermark(table: Table, watermark: Watermark) -> None:
    columns = ddl.columns(table.schema)
    if isinstance(table.write, Append) and not table.write.unique:
        raise declaration_error(table, "watermark without unique: name the columns by which a repeated row is known")
    if watermark.of not in columns:
        raise declaration_error(
            table, f"watermark of '{watermark.of}', no column of its schema: {suggest(watermark.of, columns)}"
        )
    if watermark.late not in LATE_ACTIONS:
        raise declaration_error(table, f"late is '{watermark.late}': {suggest(watermark.late, list(LATE_ACTIONS))}")
