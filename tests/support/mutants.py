"""`make mutants`: small breaks of the code that protects tables, one at a time, and which of them no test notices.

mutmut writes the mutants into mutants/. One process tries them one after the other, with the tests that reach the
function of the mutant. So all share what pytest collected, and one Spark session. If a mutant ends or spoils that
process, another one goes on with the next mutant.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import mutmut.__main__ as generator
import pytest
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.state import state
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import mangled_name_from_mutant_name

# As mutmut numbers them.
SURVIVED, NOTICED, NO_TESTS, TIMEOUT, ENDED_THE_PROCESS = 0, 1, 33, 36, -9
FOLDER = Path(__file__).resolve().parent.parent.parent / "mutants"
# By test, its seconds and the functions that it reaches; and the functions that were there then.
MEASURED, FUNCTIONS = FOLDER / "tests.json", FOLDER / "functions.json"
WITHOUT_SPARK = [
    "tests/unit/engine/rows/test_data_skipping.py",
    "tests/unit/engine/rows/test_event_times.py",
    "tests/unit/engine/fast_path/test_known_keys.py",
    "tests/unit/engine/fast_path/test_table_at_version.py",
    "tests/unit/engine/fast_path/test_small_batches.py",
    "tests/unit/engine/fast_path/test_replaced_files.py",
    "tests/unit/engine/fast_path/test_refusals.py",
    "tests/unit/engine/fast_path/test_path.py",
    "tests/unit/engine/checkpoints/test_checkpoint_generations.py",
]
WITH_SPARK = [
    "tests/unit/engine/batch/test_batch.py",
    "tests/unit/engine/rows/test_merge_changes.py",
    "tests/unit/engine/rows/test_quality.py",
    "tests/unit/engine/rows/test_watermark.py",
    "tests/streaming/rows/test_merge_batch.py",
    "tests/streaming/rows/test_retained.py",
    "tests/streaming/test_fast_path.py",
    "tests/streaming/test_compaction.py",
]


class Runner:
    """A pytest plugin that runs tests for each of these mutants, instead of once."""

    def __init__(self, modules: list[SourceFileMutationData], mutants: list[str], most_seconds: float) -> None:
        self.module_of = {name: module for module in modules for name in module.exit_code_by_key}
        self.mutants, self.most_seconds, self.failed = mutants, most_seconds, False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.unregister(name="terminalreporter")
        # What the whole session shares outlives each test.
        self.between = SimpleNamespace(listchain=lambda: [session])
        signal.signal(signal.SIGALRM, lambda *_: pytest.fail("timeout"))
        self.measure(session.items)
        session.items.sort(key=lambda item: self.tests[item.nodeid][0])
        by_function = defaultdict(list)
        for item in session.items:
            for function in self.tests[item.nodeid][1]:
                by_function[function].append(item)
        # No mutant may have a part in what is shared.
        for item in [item for item in session.items if "spark" in item.fixturenames][:1]:
            self.fails(item, "", 300)
        for number, name in enumerate(self.mutants):
            self.note(name, ENDED_THE_PROCESS)
            tests = by_function[mangled_name_from_mutant_name(name)]
            verdict, test = self.verdict(name, tests)
            self.note(name, verdict)
            if test:
                # The next mutant of the function is likely to be noticed by the same test.
                tests.sort(key=lambda other: other is not test)
            if test and self.fails(test, "", 300):
                # It fails without the mutant, too: what earlier tests have left could pass for the next mutants' work.
                if number:
                    self.note(name, None)
                os._exit(1)
        return True

    def measure(self, items: list[pytest.Item]) -> None:
        """Finds out how many seconds each test takes, and which functions it reaches."""
        self.tests = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
        for item in items:
            if item.nodeid not in self.tests:
                began = time.monotonic()
                state()._stats.clear()
                if self.fails(item, "stats", 600):
                    print(f"{item.nodeid} fails without a mutant", flush=True)
                    state()._stats.clear()
                self.tests[item.nodeid] = time.monotonic() - began, sorted(state()._stats)
                MEASURED.write_text(json.dumps(self.tests))

    def note(self, name: str, verdict: int | None) -> None:
        self.module_of[name].exit_code_by_key[name] = verdict
        self.module_of[name].save()

    def verdict(self, name: str, tests: list[pytest.Item]) -> tuple[int, pytest.Item | None]:
        seconds = 0.0
        for test in tests:
            usual, began = self.tests[test.nodeid][0], time.monotonic()
            if self.fails(test, name, 15 + 5 * usual):
                return TIMEOUT if time.monotonic() - began > 15 + 5 * usual else NOTICED, test
            seconds += usual
            if seconds > self.most_seconds:
                break
        return SURVIVED if tests else NO_TESTS, None

    def fails(self, test: pytest.Item, mutant: str, most_seconds: float) -> bool:
        os.environ["MUTANT_UNDER_TEST"] = mutant
        self.failed = False
        signal.setitimer(signal.ITIMER_REAL, most_seconds)
        try:
            test.ihook.pytest_runtest_protocol(item=test, nextitem=self.between)
        except BaseException as error:
            self.failed = True
            print(f"{test.nodeid}: {type(error).__name__} outside of the test", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.environ["MUTANT_UNDER_TEST"] = ""
        return self.failed


def modules() -> list[SourceFileMutationData]:
    found = [SourceFileMutationData(path=path) for path in walk_mutatable_files()]
    for module in found:
        module.load()
        module.meta_path = module.meta_path.absolute()
    return found


def forget_measurements() -> None:
    """Forgets what tests reach if there are new functions, which may be reached by any of them."""
    functions = {mangled_name_from_mutant_name(name) for module in modules() for name in module.exit_code_by_key}
    if not FUNCTIONS.exists() or functions.difference(json.loads(FUNCTIONS.read_text())):
        MEASURED.unlink(missing_ok=True)
    FUNCTIONS.write_text(json.dumps(sorted(functions)))


def run(mutants: list[str], tests: list[str], most_seconds: float) -> None:
    """Tries these mutants, in as many processes as that takes."""
    verdicts = {name: verdict for module in modules() for name, verdict in module.exit_code_by_key.items()}
    left = [name for name in mutants if verdicts[name] is None]
    if not left:
        return
    if pid := os.fork():
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) > 1:
            raise SystemExit("pytest does not begin")
        functions = {mangled_name_from_mutant_name(name) for name in left}
        measured = json.loads(MEASURED.read_text())
        reached = {test.partition("::")[0] for test, (_, of_test) in measured.items() if functions & set(of_test)}
        run(mutants, [file for file in sorted(reached) if file.startswith(tuple(tests))] or tests, most_seconds)
        return
    runner = Runner(modules(), left, most_seconds)
    os.chdir(FOLDER)
    sys.path[0] = str(FOLDER)
    arguments = ["--rootdir=.", "--tb=short", "-q", *config().pytest_add_cli_args, *tests]
    os._exit(int(pytest.main(arguments, plugins=[runner])))


def main() -> None:
    parser = argparse.ArgumentParser(description="names the breaks of the code that no test notices")
    parser.add_argument(
        "patterns", nargs="*", default=["*"], help="names of mutants, such as include.control.leases.lease.*"
    )
    parser.add_argument("--sample", type=int, help="at most so many mutants of each module; all if not given")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000), help="of the sample")
    parser.add_argument("--seconds", type=float, default=30, help="for the tests of a mutant that nobody notices")
    parser.add_argument("--without-spark", action="store_true", help="try the engine by tests of milliseconds only")
    options = parser.parse_args()
    os.environ["MUTANT_UNDER_TEST"] = "mutant_generation"
    shutil.rmtree(FOLDER / "tests", ignore_errors=True)
    generator.copy_src_dir()
    generator.copy_also_copy_files()
    generator.create_mutants(1)
    forget_measurements()
    print(f"\nseed {options.seed}", flush=True)
    chosen = dict[str, list[str]]()
    for module in modules():
        names = [name for name in module.exit_code_by_key if any(fnmatch(name, each) for each in options.patterns)]
        # A module's sample is the same whatever other modules are tried.
        chooser = random.Random(f"{options.seed} {module.path}")
        names = chooser.sample(names, min(len(names), options.sample or len(names)))
        for name in names:
            if module.exit_code_by_key[name] not in (NOTICED, TIMEOUT):
                module.exit_code_by_key[name] = None
        module.save()
        chosen |= {str(module.path): names} if names else {}
    of_engine = [name for path, names in chosen.items() if path.startswith("include/engine") for name in names]
    others = [name for path, names in chosen.items() if not path.startswith("include/engine") for name in names]
    random.Random(options.seed).shuffle(of_engine)
    run(others, config().pytest_add_cli_args_test_selection, options.seconds)
    run(of_engine, WITHOUT_SPARK + ([] if options.without_spark else WITH_SPARK), options.seconds)
    for module in modules():
        names = chosen.get(str(module.path), [])
        missed = sorted(name for name in names if module.exit_code_by_key[name] in (SURVIVED, NO_TESTS))
        if names:
            print(f"{module.path}: {len(names) - len(missed)} of {len(names)} noticed", *missed, sep="\n    ")


if __name__ == "__main__":
    main()
