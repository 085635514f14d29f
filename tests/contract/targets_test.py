"""A named backend that is not there fails the tests, one that they do not run skips them."""
import os
import subprocess

# (TILEWISE_TEST_BACKEND, test, exit status is 0, what it says)
ROWS = [
    ("abacus", "Layout.BroadcastInputs", False,
     "TILEWISE_TEST_BACKEND=abacus: no such backend on this machine"),
    ("abacus", "Mathematics.Scale", False,
     "TILEWISE_TEST_BACKEND=abacus: no such backend on this machine"),
    ("standard", "Layout.BroadcastInputs", True,
     "TILEWISE_TEST_BACKEND=standard: it is only judged against the reference"),
    ("standard", "Layout.BroadcastInputs", True, "[  SKIPPED ] Layout.BroadcastInputs"),
    ("standard", "Mathematics.Scale", True, "[       OK ] Mathematics.Scale"),
]


def main():
    failed = 0
    for backend, test, passes, text in ROWS:
        done = subprocess.run([os.path.join("tests", "contract_test"), "--gtest_filter=" + test],
                              env={**os.environ, "TILEWISE_TEST_BACKEND": backend},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if (done.returncode == 0) != passes or text not in done.stdout:
            failed += 1
            print(f"{backend} {test}: status {done.returncode}, expected {text!r} in:")
            # Marked, or the lines would count as those of a test of their own.
            print("\n".join("> " + line for line in done.stdout.splitlines()))
    print(f"{len(ROWS) - failed} passed, {failed} failed")
    return 1 if failed else 0


raise SystemExit(main())
