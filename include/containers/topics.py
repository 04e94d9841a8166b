"""Creates the topics that tables read and the default cluster lacks: python -m include.containers.topics"""

from include import logs
from include.errors import report
from include.local.broker import create_topics, declared_topics


def main() -> None:
    logs.start()
    logs.info(f"the topics exist at {create_topics(declared_topics())}")


if __name__ == "__main__":
    report(main)
