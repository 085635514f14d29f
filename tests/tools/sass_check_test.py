"""tests/gpu/sass_check.py finds cuobjdump in a virtual environment, and says when there is none."""
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpu"))
from sass_check import find_cuobjdump  # noqa: E402


def answer(venv):
    try:
        return find_cuobjdump(venv, toolkits=())
    except SystemExit as stopped:
        return str(stopped)


os.environ["PATH"] = ""
with tempfile.TemporaryDirectory() as folder:
    missing = answer(folder)
    program = pathlib.Path(folder, "lib/python3.11/site-packages/nvidia/cu13/bin/cuobjdump")
    program.parent.mkdir(parents=True)
    program.touch()
    results = [missing == "sass_check: no cuobjdump; ./dev test brings it",
               answer(folder) == str(program)]
print(f"{results.count(True)} passed, {results.count(False)} failed")
sys.exit(0 if all(results) else 1)
