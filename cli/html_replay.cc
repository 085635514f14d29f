// 4 rows, 8 keys, tiles of 2 x 2, d = 2. Standard attention goes over the matrix in three passes of
// 8 blocks; the tiled order visits each block once, with the running maximum and sum of two rows.
// The page shows the state after a number of steps, a pure function of that number.
#include "cli/html_replay.h"

namespace tilewise::cli {

namespace {

constexpr std::string_view kHtml = R"html(
<div id="replay" class="replay" tabindex="0" role="group"
     aria-label="Replay of the tiles. Arrow keys step, space plays, Home restarts.">
  <div class="controls">
    <button type="button" id="replay-restart">Restart</button>
    <button type="button" id="replay-back">Back</button>
    <button type="button" id="replay-step">Step</button>
    <button type="button" id="replay-play">Play</button>
    <span id="replay-count" class="count"></span>
  </div>
  <div class="stages">
    <div class="stage">
      <h3 class="standard">Standard: the matrix in slow memory</h3>
      <svg viewBox="0 0 300 200" id="replay-standard" role="img" aria-label="Score matrix"></svg>
      <p id="replay-standard-text" aria-live="polite"></p>
    </div>
    <div class="stage">
      <h3 class="tiled">Tiled: one block in fast memory</h3>
      <svg viewBox="0 0 300 200" id="replay-tiled" role="img" aria-label="Tiles"></svg>
      <p id="replay-tiled-text" aria-live="polite"></p>
    </div>
  </div>
  <noscript><p>The replay needs scripts.</p></noscript>
</div>
)html";

constexpr std::string_view kScript = R"html(<script>
(() => {
  const scores = [[1, 3, 0, 2, 5, 1, 0, 2], [2, 0, 1, 1, 0, 4, 1, 0],
                  [0, 1, 2, 0, 1, 0, 3, 1], [4, 2, 1, 3, 0, 1, 2, 0]];
  const rows = 4, keys = 8, tile = 2, d = 2, blocks = 8, last = 3 * blocks;
  const passes = ["writes S", "reads S, writes P", "reads P"];
  const find = (id) => document.getElementById(id);
  const block = (i) => ({ row: Math.floor(i / 4) * tile, key: (i % 4) * tile });
  let step = 0, timer = 0;

  const cell = (r, k, kind, text) => {
    const x = 40 + k * 30, y = 30 + r * 30;
    return `<rect class="cell ${kind}" x="${x}" y="${y}" width="28" height="28"/>` +
      `<text class="cell-text ${kind}" x="${x + 14}" y="${y + 18}">${text}</text>`;
  };
  const inside = (b, r, k) => r >= b.row && r < b.row + tile && k >= b.key && k < b.key + tile;

  function standardMoved(steps) {
    let moved = 0;
    for (let i = 0; i < steps; ++i) moved += [4, 8, 4][Math.floor(i / blocks)];
    const thirds = Math.min(3, steps / blocks);
    const ends = [rows * d + keys * d, 0, keys * d + rows * d];  // q k, nothing, v out
    for (let p = 0; p < 3; ++p) moved += ends[p] * Math.max(0, Math.min(1, thirds - p));
    return Math.round(moved);
  }

  function tiledMoved(steps) {
    let moved = 0;
    for (let i = 0; i < Math.min(steps, blocks); ++i) {
      if (i % 4 === 0) moved += tile * d;           // q
      moved += 2 * tile * d;                        // k, v
      if (i % 4 === 3) moved += tile * d;           // out
    }
    return moved;
  }

  function statistics(steps) {
    const state = scores.map(() => ({ m: -Infinity, l: 0, rescale: 1 }));
    for (let i = 0; i < Math.min(steps, blocks); ++i) {
      const b = block(i);
      for (let r = b.row; r < b.row + tile; ++r) {
        const part = scores[r].slice(b.key, b.key + tile), row = state[r];
        const m = Math.max(row.m, ...part);
        row.rescale = row.m === -Infinity ? 1 : Math.exp(row.m - m);
        row.l = (row.m === -Infinity ? 0 : row.l * row.rescale) +
          part.reduce((sum, s) => sum + Math.exp(s - m), 0);
        row.m = m;
      }
    }
    return state;
  }

  function drawStandard() {
    const pass = Math.min(2, Math.floor((step - 1) / blocks));
    const now = step > 0 && step <= last ? block((step - 1) % blocks) : null;
    let svg = "";
    for (let r = 0; r < rows; ++r) for (let k = 0; k < keys; ++k) {
      const index = Math.floor(r / tile) * 4 + Math.floor(k / tile);
      const done = step - index - 1;                // passes that are over this block
      const level = done < 0 ? 0 : Math.min(3, Math.floor(done / blocks) + 1);
      const kind = now && inside(now, r, k) ? "active" : level > 0 ? "stored" : "empty";
      svg += cell(r, k, kind, level === 0 ? "" : level === 1 ? scores[r][k] : "p");
    }
    const stored = Math.min(step, blocks) * tile * tile;
    const zone = `slow memory: ${stored} of ${rows * keys} entries`;
    svg += `<text class="zone" x="40" y="20">${zone}</text>`;
    find("replay-standard").innerHTML = svg;
    find("replay-standard-text").textContent = step === 0 ? "Nothing moved yet." :
      `Pass ${pass + 1} of 3 ${passes[pass]}; ${standardMoved(step)} numbers moved.`;
  }

  function drawTiled() {
    const done = Math.min(step, blocks), now = step > 0 && step <= blocks ? block(step - 1) : null;
    const state = statistics(step);
    let svg = "";
    for (let r = 0; r < rows; ++r) {
      for (let k = 0; k < keys; ++k) {
        const active = now && inside(now, r, k);
        const seen = Math.floor(r / tile) * 4 + Math.floor(k / tile) < done;
        svg += cell(r, k, active ? "active" : seen ? "seen" : "empty", active ? scores[r][k] : "");
      }
      const row = state[r];
      if (row.l > 0) {
        svg += `<text class="zone" x="2" y="${48 + r * 30}">m ${row.m}</text>`;
      }
    }
    const zone = `fast memory: ${now ? tile * tile : 0} scores at a time`;
    svg += `<text class="zone" x="40" y="20">${zone}</text>`;
    const shown = now ? [now.row, now.row + 1] : step > blocks ? [2, 3] : [];
    shown.forEach((r, i) => {
      const row = state[r];
      svg += `<text class="zone" x="40" y="${168 + 18 * i}">row ${r}: m ${row.m}, ` +
        `l ${row.l.toFixed(3)}, old sums x ${row.rescale.toFixed(3)}</text>`;
    });
    find("replay-tiled").innerHTML = svg;
    find("replay-tiled-text").textContent = step === 0 ? "Nothing moved yet." :
      (step <= blocks ? `Block ${step} of ${blocks}, seen once` : "Done: out is written once") +
      `; ${tiledMoved(step)} numbers moved.`;
  }

  function show(to) {
    step = Math.max(0, Math.min(last, to));
    drawStandard();
    drawTiled();
    find("replay-count").textContent = `step ${step} of ${last}`;
    find("replay").dataset.step = step;
    if (step === last) pause();
  }
  function pause() {
    clearInterval(timer);
    timer = 0;
    find("replay-play").textContent = "Play";
  }
  function play() {
    if (timer) return pause();
    if (step === last) show(0);
    timer = setInterval(() => show(step + 1), 600);
    find("replay-play").textContent = "Pause";
  }
  find("replay-restart").onclick = () => { pause(); show(0); };
  find("replay-back").onclick = () => { pause(); show(step - 1); };
  find("replay-step").onclick = () => { pause(); show(step + 1); };
  find("replay-play").onclick = play;
  find("replay").addEventListener("keydown", (event) => {
    const moves = { ArrowRight: step + 1, ArrowLeft: step - 1, Home: 0, End: last };
    if (event.key in moves) { pause(); show(moves[event.key]); }
    else if (event.key === " " && event.target === find("replay")) play();
    else return;
    event.preventDefault();
  });
  window.addEventListener("beforeprint", pause);
  show(3);
})();
</script>
)html";

}  // namespace

std::string_view replay_html() { return kHtml; }
std::string_view replay_script() { return kScript; }

}  // namespace tilewise::cli
