"""The log of long-lived processes: time, level, driver, flow and batch of what happens, for people or as JSON."""

import json
import logging
import time

from include.settings import settings

# Airflow's tasks, and tests, have handlers of their own, which take these records, too.
_LOGGER = logging.getLogger("sluice")
_LOGGER.setLevel(logging.INFO)
JSON = "json"


def start(driver: str = "") -> None:
    """Write the log of this process to stderr, unless it goes elsewhere already. driver: its name."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json(driver) if settings().log_format == JSON else _Text(driver))
    logging.basicConfig(handlers=[handler])


def info(message: object, flow: str | None = None, batch: int | None = None) -> None:
    """Log what happens as it should. message: one sentence, without the flow and the batch that it is about."""
    _log(logging.INFO, message, flow, batch)


def warning(message: object, flow: str | None = None, batch: int | None = None) -> None:
    """Log what a person should know, and the process copes with."""
    _log(logging.WARNING, message, flow, batch)


def error(message: object, flow: str | None = None, batch: int | None = None, traceback: bool = False) -> None:
    """Log a failure. traceback: with that of the exception that is handled."""
    _log(logging.ERROR, message, flow, batch, traceback)


def _log(level: int, message: object, flow: str | None, batch: int | None, traceback: bool = False) -> None:
    about = (flow, None if batch is None else f"batch {batch}", message)
    text = ": ".join(str(part) for part in about if part is not None)
    # `%s`: a message may hold a percent sign.
    extra = {"about": {"flow": flow, "batch": batch, "message": str(message)}}
    _LOGGER.log(level, "%s", text, exc_info=traceback, extra=extra, stacklevel=3)


class _Text(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self, driver: str) -> None:
        super().__init__(
            f"%(asctime)sZ %(levelname)s {f'[{driver}] ' if driver else ''}%(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
        )


class _Json(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self, driver: str) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%S")
        self._driver = driver or None

    def format(self, record: logging.LogRecord) -> str:
        """One line: time (UTC), level, driver, flow, batch, message, and the traceback where there is one."""
        about = getattr(record, "about", {"flow": None, "batch": None, "message": record.getMessage()})
        at = f"{self.formatTime(record, self.datefmt)}.{record.msecs:03.0f}Z"
        document = {"time": at, "level": record.levelname, "logger": record.name, "driver": self._driver, **about}
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document)
