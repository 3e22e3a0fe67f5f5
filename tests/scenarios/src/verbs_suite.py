"""Runs rdma-core's own tests on one device, and prints what became of each case:

    case    <ok, skipped or failed>    <seconds>    <name>    <why, on one line>

with tabs between, and at the end `apart <n>`: cases for hardware of one vendor, which are not even loaded, and `end`.
Whatever the cases themselves print is left alone. Arguments: a copy of the tests, the device, its port, a GID index.
"""

import faulthandler
import mmap
import os
import re
import sys
import time
import unittest

# Much longer than any case takes; one that hangs ends the run, and is the last that is told of.
HANG = 180

# Hardware of one vendor: its own verbs, its own provider library, or a GPU.
APART = re.compile(r"test_(mlx5|efa|cuda|hns|irdma)")


class Lines(unittest.TestResult):
    """Tells of each case at once, so that nothing is lost with a run that does not end."""

    def startTest(self, test):
        super().startTest(test)
        self.told = False
        self.began = time.monotonic()
        faulthandler.dump_traceback_later(HANG, exit=True)
        print(f"start\t{test.id()}", flush=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def tell(self, verdict, test, why=""):
        if self.told and verdict == "ok":
            return
        self.told = True
        took = time.monotonic() - getattr(self, "began", time.monotonic())
        print(f"case\t{verdict}\t{took:.2f}\t{test.id()}\t{' '.join(why.split())}", flush=True)

    def addSuccess(self, test):
        self.tell("ok", test)

    def addSkip(self, test, reason):
        self.tell("skipped", test, reason)

    def addFailure(self, test, err):
        self.tell("failed", test, self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self.addFailure(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)

    def addUnexpectedSuccess(self, test):
        self.tell("failed", test, "it was expected to fail")

    def addExpectedFailure(self, test, err):
        self.tell("ok", test)


def flat(suite):
    """The cases of a suite. None of rdma-core's has anything to set up for a class or a module."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def run(cases):
    """Runs the cases in a process of their own: should one bring it down, another goes on with the next."""
    at = mmap.mmap(-1, 4)
    first = 0
    while first < len(cases):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            lines = Lines()
            for index, case in enumerate(cases[first:], first):
                at[:] = index.to_bytes(4, "little")
                case.run(lines)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        down = int.from_bytes(at[:], "little")
        print(f"case\tfailed\t0\t{cases[down].id()}\tthe process ended with status {status}", flush=True)
        first = down + 1


def main():
    directory, device, port, gid = sys.argv[1:5]
    tests = os.path.join(directory, "tests")
    apart = 0
    for name in sorted(os.listdir(tests)):
        if APART.match(name):
            path = os.path.join(tests, name)
            with open(path, encoding="utf-8") as source:
                apart += len(re.findall(r"^    def test_", source.read(), re.MULTILINE))
            os.remove(path)

    # The tests import each other as a package, and the parser of their arguments as a module.
    sys.path[:0] = [directory, tests]
    sys.argv[1:] = ["--dev", device, "--port", port, "--gid", gid]
    from args_parser import parser

    parser.parse_args()
    import tests as package

    run(list(flat(unittest.defaultTestLoader.loadTestsFromModule(package))))
    print(f"apart\t{apart}")
    print("end", flush=True)


if __name__ == "__main__":
    main()
