"""The pictures of docs/pictures are what the program draws from their result files, to the byte.

Also what tilewise profile --from refuses.
"""
import os
import subprocess
import sys
import tempfile

from checks import check, finish

PROGRAM = os.environ["TILEWISE_PROGRAM"]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PICTURES = ("roofline", "bytes", "time", "memory")
# Folder of docs/pictures -> result file.
DRAWN = {"cpu": "cpu-profile.json", "h200": "h200-profile.json"}

def content(path):
    with open(path, "rb") as file:
        return file.read()


def profile(*words):
    return subprocess.run([PROGRAM, "profile", *words], capture_output=True, text=True,
                          check=False)


def compare(name, result):
    committed = os.path.join(ROOT, "docs", "pictures", name)
    with tempfile.TemporaryDirectory() as folder:
        done = profile("--from", f"{ROOT}/bench/results/{result}", "--svg", folder)
        check(f"draws {result}", done.returncode == 0, done.stderr)
        check(f"{name}: nothing else there",
              sorted(os.listdir(committed)) == sorted(f"{p}.svg" for p in PICTURES))
        for picture in PICTURES:
            same = content(f"{folder}/{picture}.svg") == content(f"{committed}/{picture}.svg")
            check(f"docs/pictures/{name}/{picture}.svg", same, f"draw it again: tilewise profile "
                  f"--from bench/results/{result} --svg docs/pictures/{name}")


def refuses(words, message):
    done = profile(*words)
    check(f"refuses {words}", done.returncode == 2 and message in done.stderr, done.stderr)


def main():
    for name, result in DRAWN.items():
        compare(name, result)
    results = f"{ROOT}/bench/results"
    refuses((), "expected a Case to measure, or --from FILE to draw")
    refuses(("q=64 d=8", "--from", f"{results}/cpu-profile.json"), "expected a Case to measure, or")
    refuses(("--from", "/nowhere.json"), "/nowhere.json: cannot be read")
    refuses(("--from", f"{ROOT}/README.md"), "is no result file, expected what --json prints")
    refuses(("--from", f"{results}/cpu-bytes.json"), "is no profile, expected what tilewise")
    refuses(("q=64 d=8", "--svg", "/nowhere"), "/nowhere/roofline.svg")
    with tempfile.TemporaryDirectory() as folder:
        text = content(f"{results}/cpu-profile.json").decode()
        for part, message in (('"backend": "standard",', "a row has no backend"),
                              ('"ms": ', "ms is no number")):
            path = os.path.join(folder, "broken.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace(part, "" if part.endswith(",") else '"ms": "x", "y": ', 1))
            refuses(("--from", path), message)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
