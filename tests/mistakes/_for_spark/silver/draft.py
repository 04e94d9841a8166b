# draft: remove this line when the table is whole
"""It declares no table yet."""
