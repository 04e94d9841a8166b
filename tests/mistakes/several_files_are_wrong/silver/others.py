"""Cannot be imported."""

import not_there_at_all

TABLE = not_there_at_all.TABLE
