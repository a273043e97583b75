(() => {
  "use strict";
  // Without this script the page shows the cone of one state; with it, of any that is pointed at.
  const one = (part) => document.querySelector(`[data-part="${part}"]`);
  const data = JSON.parse(one("cone-data").textContent);
  const map = one("map"), cone = one("cone"), told = one("told");
  const rows = data.points.length, columns = data.tokens.length;
  const codes = Uint8Array.from(atob(data.codes), (letter) => letter.charCodeAt(0));
  const decoded = Float64Array.from({ length: 256 }, (_, code) => code ? 10 ** (data.low + (code - 1) * data.step) : 0);
  // In order: each target point but the first, its positions, the points before it, theirs.
  const pair = (target, to, source, from) =>
    decoded[codes[columns * columns * target * (target - 1) / 2 + (to * target + source) * columns + from]];
  let row = data.row, at = data.at, kind = "raw", values = [];

  const raw = (y, x) => y < row ? pair(row, at, y, x) : y > row ? pair(y, x, row, at) : x === at ? 1 : 0;
  const factor = (y, x) => {
    const own = data.norms[row][at], other = data.norms[y][x];
    return y < row ? other / own : y > row ? own / other : 1;
  };
  const compute = () => {
    values = Array.from({ length: rows }, (_, y) => Array.from({ length: columns }, (_, x) => raw(y, x)));
    if (kind === "norm") values = values.map((line, y) => line.map((v, x) => v ? v * factor(y, x) : 0));
    if (kind === "layer") values = values.map((line) => {
      const most = Math.max(...line);
      return most ? line.map((v) => v / most) : line;
    });
  };
  const short = (value) => value === 0 ? "0" : String(Number(value.toPrecision(3)));
  const name = (y, x) => `${data.points[y]} at token ${x}${data.tokens[x] === String(x) ? "" : ` ${data.tokens[x]}`}`;

  const draw = () => {
    compute();
    const high = Math.log10(Math.max(...values.map((line) => Math.max(...line)))), low = high - data.decades;
    const level = (v) => v <= 0 ? -1 :
      Math.min(data.levels - 1, Math.max(0, Math.trunc((Math.log10(v) - low) / data.decades * data.levels)));
    const paths = Array.from({ length: data.levels }, () => []);
    values.forEach((line, y) => {
      const levels = line.map(level);
      let start = 0;
      for (let x = 1; x <= columns; x += 1) {
        if (x < columns && levels[x] === levels[start]) continue;
        if (levels[start] >= 0) paths[levels[start]].push(`M${start} ${rows - 1 - y}h${x - start}v1H${start}z`);
        start = x;
      }
    });
    cone.querySelectorAll("path").forEach((path, number) => path.setAttribute("d", paths[number].join("")));
    one("low").textContent = short(10 ** low);
    one("high").textContent = short(10 ** high);
    for (const svg of [map, cone]) {
      const [left, top, wide, tall] = svg.dataset.box.split(" ").map(Number), self = svg.querySelector(".self");
      self.setAttribute("x", left + at * wide);
      self.setAttribute("y", top + (rows - 1 - row) * tall);
    }
    told.textContent = name(row, at);
    map.setAttribute("aria-description", name(row, at));
  };
  const field = (svg, event) => {
    const [left, top, wide, tall] = svg.dataset.box.split(" ").map(Number);
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = Math.floor(((event.clientX - box.left) * scale - left) / wide);
    const y = rows - 1 - Math.floor(((event.clientY - box.top) * scale - top) / tall);
    return x >= 0 && x < columns && y >= 0 && y < rows ? [y, x] : null;
  };
  const choose = (y, x) => {
    if (y === row && x === at) return;
    [row, at] = [y, x];
    draw();
  };
  const point = (event) => {
    const found = field(map, event);
    if (found) choose(...found);
  };
  map.addEventListener("pointermove", point);
  map.addEventListener("pointerdown", point);
  map.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(Math.min(rows - 1, Math.max(0, row + step[0])), Math.min(columns - 1, Math.max(0, at + step[1])));
  });
  cone.addEventListener("pointermove", (event) => {
    const found = field(cone, event);
    if (!found) return;
    const [y, x] = found, value = values[y][x], other = name(y, x);
    const way = y < row ? `sees ${other}` : `is seen by ${other}`;
    const text = y === row ? (x === at ? "the state itself" : "states of one layer do not see each other")
      : value ? `${way}: about ${short(value)}` : `${way}: not at all`;
    told.textContent = `${name(row, at)} · ${text}`;
  });
  cone.addEventListener("pointerleave", () => { told.textContent = name(row, at); });
  const kinds = [...one("kinds").querySelectorAll("input")];
  const words = [[one("label").textContent, one("hint").textContent],
    ...[...document.querySelectorAll("details.still summary")].map((item) => item.textContent.split(": "))];
  kinds.forEach((input, number) => input.addEventListener("change", () => {
    kind = input.value;
    [one("label").textContent, one("hint").textContent] = [words[number][0], words[number].slice(1).join(": ")];
    draw();
  }));
  for (const still of document.querySelectorAll("details.still")) still.hidden = true;
  one("kinds").hidden = false;
  one("how").hidden = false;
  const checked = kinds.find((input) => input.checked);  // a reload keeps what was picked
  if (checked) checked.dispatchEvent(new Event("change")); else draw();
})();
