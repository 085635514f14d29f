"""Counting for the tests of the command line that are scripts."""
passed = failed = 0


def check(what, holds, detail=""):
    global passed, failed
    passed += bool(holds)
    failed += not holds
    print(("ok   " if holds else "FAIL ") + what + (f": {detail}" if not holds else ""))


def finish():
    """Prints the counts as ./dev test reads them; returns the exit status."""
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
