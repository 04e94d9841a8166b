"""Asks a service over HTTP whether it is well: python -m include.containers.health URL [COMPONENT]

COMPONENT: of Airflow's health page. Exit code 1: it is not well, or does not answer.
"""

import json
import sys
import urllib.request

TIMEOUT_SECONDS = 8


def main() -> int:
    url, components = sys.argv[1], sys.argv[2:]
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            states = json.load(answer) if components else {}
    except OSError as error:
        print(f"{url} does not answer: {error}")
        return 1
    ill = {name: states.get(name) for name in components if (states.get(name) or {}).get("status") != "healthy"}
    print(ill or "well")
    return 1 if ill else 0


if __name__ == "__main__":
    sys.exit(main())
