"""The HTML report of `tilewise profile` in a headless Chromium, where one is installed.

The page opens without errors and asks for nothing outside itself, the replay steps by button and by
key, its running maximum and sum end as a softmax over the whole row gives them, and the numbers of
the page are those of --json from the same run.
"""
import html.parser
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

from checks import check, finish

PROGRAM = os.environ["TILEWISE_PROGRAM"]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)
CATCH = """<script>window.caught = [];
addEventListener("error", (e) => caught.push(e.message));
addEventListener("unhandledrejection", (e) => caught.push(String(e.reason)));
</script>"""
DRIVE = """<script>(() => {
  const replay = document.getElementById("replay"), seen = [], note = () =>
    seen.push(Number(replay.dataset.step));
  const key = (name) => replay.dispatchEvent(new KeyboardEvent("keydown", {key: name}));
  const press = (name) => document.getElementById("replay-" + name).click();
  press("restart"); note();
  press("step"); press("step"); note();
  press("back"); note();
  key("ArrowRight"); note();
  key("ArrowLeft"); note();
  key("Home"); key("ArrowLeft"); note();
  key("End"); note();
  const end = document.getElementById("replay-tiled").textContent +
    document.getElementById("replay-standard-text").textContent +
    document.getElementById("replay-tiled-text").textContent;
  press("play"); const playing = document.getElementById("replay-play").textContent;
  press("play"); const paused = document.getElementById("replay-play").textContent;
  const node = document.createElement("pre");
  node.id = "outcome";
  node.textContent = JSON.stringify({caught, seen, end, playing, paused,
    wide: document.documentElement.scrollWidth > innerWidth});
  document.body.append(node);
})();</script>"""

class Cells(html.parser.HTMLParser):
    """(case, backend) -> {key: value} of the table of numbers."""

    def __init__(self):
        super().__init__()
        self.rows = {}

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "tr" and "data-case" in found:
            self.row = self.rows.setdefault((found["data-case"], found["data-backend"]), {})
        elif tag == "td" and "data-key" in found:
            self.row[found["data-key"]] = float(found["data-value"])


def compare_numbers(page, printed):
    cells = Cells()
    cells.feed(page)
    rows = [row for row in printed["rows"] if "case" in row]
    check("a row of the page for each of --json", len(cells.rows) == len(rows), len(cells.rows))
    for row in rows:
        shown = cells.rows.get((row["case"], row["backend"]), {})
        name = f'{row["backend"]} {row["case"]}'
        check(f"numbers of {name}", shown and all(shown[key] == row[key] for key in shown), shown)
    advice = next(row["advice"] for row in printed["rows"] if "advice" in row)
    plain = page.replace("&#39;", "'").replace("&quot;", '"').replace("&amp;", "&")
    check("the advice of --json", advice in plain, advice)


def open_in_browser(folder, page, size):
    path = os.path.join(folder, "driven.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write(page.replace("<head>", "<head>" + CATCH).replace("</body>", DRIVE + "</body>"))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}",
               f"--user-data-dir={folder}/profile", "--dump-dom", "file://" + path]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    outcome = re.search(r'<pre id="outcome">(.*?)</pre>', dom, re.S).group(1)
    return json.loads(outcome.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def check_outcome(outcome):
    check("no errors", outcome["caught"] == [], outcome["caught"])
    check("buttons and keys step", outcome["seen"] == [0, 2, 1, 2, 1, 0, 24], outcome["seen"])
    check("play and pause", (outcome["playing"], outcome["paused"]) == ("Pause", "Play"))
    row = [4, 2, 1, 3, 0, 1, 2, 0]  # the last of the toy
    sum_at_end = sum(math.exp(score - max(row)) for score in row)
    check("running sum at the end", f"m 4, l {sum_at_end:.3f}" in outcome["end"], outcome["end"])
    # q, k, v, out once and the matrix four times; q and out once and k, v for both query tiles.
    check("numbers moved", "176 numbers" in outcome["end"] and "80 numbers" in outcome["end"],
          outcome["end"])
    check("nothing wider than the window", not outcome["wide"])


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.html")
        printed = subprocess.run(
            [PROGRAM, "profile", "hq=2 q=512 d=16", "-r", "1", "--threads", "1", "--json", "--html",
             path], capture_output=True, text=True, check=True).stdout
        with open(path, encoding="utf-8") as file:
            page = file.read()
        check("nothing outside the file",
              not re.search(r"""(src|href)=['"](?!data:)|url\(|@import|fetch\(""", page))
        compare_numbers(page, json.loads(printed))
        if CHROMIUM is None:
            print("no Chromium here: the page is not opened")
        else:
            for size in ("1200,900", "400,800"):
                check_outcome(open_in_browser(folder, page, size))
    return finish()


if __name__ == "__main__":
    sys.exit(main())
