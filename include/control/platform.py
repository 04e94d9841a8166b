"""What tells this platform from others that share its brokers."""

import secrets

from sqlalchemy import Engine, select

from include.control.store import database
from include.control.store.schema import platforms


def identity(engine: Engine) -> str:
    """Returns a random name that the platform keeps: eight hexadecimal digits. Raises Unreachable."""
    with database.reading(engine) as connection:
        known = connection.execute(select(platforms.c.id)).scalar()
    if known:
        return str(known)
    with database.transaction(engine) as connection:
        database.serialize(connection, "platform")
        known = connection.execute(select(platforms.c.id)).scalar()
        if not known:
            known = secrets.token_hex(4)
            connection.execute(platforms.insert().values(id=known))
    return str(known)
