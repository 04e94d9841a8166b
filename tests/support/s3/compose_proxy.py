"""Runs a proxy in front of the service `store` of docker-compose.yaml: python -m tests.support.s3.compose_proxy

From SIGUSR1 on, it answers every tenth request with status 503, and from SIGUSR2 on none.
"""

import signal
from contextlib import ExitStack
from types import FrameType

from tests.support.s3 import store_faults
from tests.support.s3.proxy import StoreProxy

PORT = 7070


def main() -> None:
    proxy, faults = StoreProxy(PORT, "store", ("", PORT)), ExitStack()

    def overload(_signal: int, _frame: FrameType | None) -> None:
        faults.enter_context(store_faults.overloaded(proxy))

    def forward(_signal: int, _frame: FrameType | None) -> None:
        faults.close()

    signal.signal(signal.SIGUSR1, overload)
    signal.signal(signal.SIGUSR2, forward)
    with proxy.running():
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
