(() => {
  "use strict";
  // The page is complete without this script: it adds sorting, filtering, keys, tips and copying.
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  // Points may have any name, and their names are ids: the page's own parts go by another way.
  const one = (part) => document.querySelector(`[data-part="${part}"]`);
  const entries = all("details.entry");
  const filter = one("filter");

  // Filter: words that each name a verdict, a glob of point names, or a part of a name.
  const glob = (word) => new RegExp(
    "^" + word.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".") + "$", "i");
  const matches = (entry, word) => {
    const name = entry.dataset.name, low = word.toLowerCase();
    if (entry.dataset.verdict === low) return true;
    if (low === "failed") return entry.classList.contains("failed");
    return /[*?]/.test(word) ? glob(word).test(name) : name.toLowerCase().includes(low);
  };
  const narrow = () => {
    const words = filter.value.trim().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const entry of entries) {
      entry.hidden = words.length > 0 && !words.some((word) => matches(entry, word));
      shown += !entry.hidden;
    }
    one("shown").textContent = words.length ? `${shown} of ${entries.length} points` : "";
    one("nothing").hidden = shown > 0;
  };
  if (filter) {
    filter.closest(".tools").hidden = false;
    filter.addEventListener("input", narrow);
  }

  // Sort: a second press turns the order round; unknown values stay last.
  const buttons = all("button.sort");
  const sort = (button) => {
    const key = button.dataset.key;
    const down = button.dataset.order ? button.dataset.order === "up" : key !== "index";
    const value = (entry) => {
      const raw = entry.dataset[key];
      return key === "verdict" ? raw : raw === "" ? null : raw === "inf" ? Infinity : Number(raw);
    };
    const ordered = [...entries].sort((a, b) => {
      const x = value(a), y = value(b);
      const far = (x === null) - (y === null);
      const by = far || (x < y ? -1 : x > y ? 1 : 0) * (down && !far ? -1 : 1);
      return by || a.dataset.index - b.dataset.index;
    });
    for (const other of buttons) { delete other.dataset.order; other.removeAttribute("aria-pressed"); }
    button.dataset.order = down ? "down" : "up";
    button.setAttribute("aria-pressed", "true");
    one("nothing").before(...ordered);
  };
  for (const button of buttons) {
    button.disabled = false;
    button.addEventListener("click", () => sort(button));
  }

  // Links to a point open its row, also when a filter hides it.
  const show = (entry) => {
    if (entry.hidden && filter) { filter.value = ""; narrow(); }
    entry.open = true;
    entry.scrollIntoView({ block: "center" });
    entry.querySelector("summary").focus({ preventScroll: true });
  };
  const follow = () => {
    let name = "";
    try { name = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const entry = entries.find((item) => item.id === name);
    if (entry) show(entry);
  };
  addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) {
      event.preventDefault();  // the browser would jump after us, and take the focus away
      follow();
    }
  });
  follow();

  // j and k walk the rows that are shown; / goes to the filter.
  const walk = (by) => {
    const shown = all("details.entry").filter((entry) => !entry.hidden);
    if (!shown.length) return;
    const at = shown.findIndex((entry) => entry.contains(document.activeElement));
    const next = at < 0 ? (by > 0 ? 0 : shown.length - 1) : Math.min(shown.length - 1, Math.max(0, at + by));
    shown[next].querySelector("summary").focus({ preventScroll: true });
    shown[next].scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input, textarea, select");
    if (event.key === "Escape") {
      hush();
      if (typing) { filter.value = ""; narrow(); filter.blur(); }
    } else if (!typing && (event.key === "j" || event.key === "k")) {
      walk(event.key === "j" ? 1 : -1);
    } else if (!typing && event.key === "/" && filter) {
      event.preventDefault();
      filter.focus();
    }
  });

  // Copy a command.
  const copy = async (text) => {
    try { await navigator.clipboard.writeText(text); } catch {
      const area = document.createElement("textarea"), before = document.activeElement;
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      before.focus();
    }
  };
  for (const button of all("button.copy")) {
    const label = button.firstChild, said = label.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await copy(button.previousElementSibling.textContent);
      label.textContent = "Copied";
      setTimeout(() => { label.textContent = said; }, 1500);
    });
  }

  // Tips: one box for charts and heatmaps; all of it is text, never markup.
  const tip = one("tip");
  const hush = () => { tip.hidden = true; };
  const say = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), wide = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, Math.min(x + 14, wide - box.width - 4))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
  };
  for (const chart of all("svg.chart")) {
    chart.addEventListener("pointermove", (event) => {
      const text = event.target.dataset ? event.target.dataset.tip : "";
      if (text) say(text, event.clientX, event.clientY); else hush();
    });
    chart.addEventListener("pointerleave", hush);
  }
  // Marks of a scatter: one stop of the tab key for all, arrow keys walk them, each is told.
  for (const map of all("svg.scatter")) {
    const marks = all("g.one", map);
    const tell = (mark) => {
      const box = mark.querySelector(".spot").getBoundingClientRect();
      say(mark.getAttribute("aria-label"), box.right, box.bottom);
    };
    marks.forEach((mark, at) => {
      const title = mark.querySelector("title");
      mark.setAttribute("aria-label", title.textContent);
      title.remove();  // the browser's own tip would stand beside ours
      mark.setAttribute("tabindex", at ? "-1" : "0");
      mark.addEventListener("focus", () => tell(mark));
      mark.addEventListener("blur", hush);
      mark.addEventListener("pointerenter", () => tell(mark));
      mark.addEventListener("pointerleave", hush);
    });
    map.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      const at = marks.indexOf(document.activeElement), next = marks[at + by];
      if (!by || at < 0) return;
      event.preventDefault();
      if (!next) return;
      marks[at].setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  }
  const heat = one("heat-data") ? JSON.parse(one("heat-data").textContent) : [];
  for (const map of all("svg.heat")) {
    const data = heat[Number(map.dataset.heat)], cursor = map.querySelector(".cursor");
    const [left, top, wide, tall] = map.dataset.box.split(" ").map(Number);
    let line = 0, column = -1;
    const point = (clientX, clientY) => {
      const inside = line >= 0 && line < data.lines.length && Boolean(data.columns[column]);
      cursor.setAttribute("visibility", inside ? "visible" : "hidden");
      if (!inside) { hush(); return; }
      cursor.setAttribute("x", left + column * wide);
      cursor.setAttribute("y", top + line * tall);
      const value = data.values[line][column];
      const text = `${data.lines[line]}\n${data.columns[column]}\n${value === null ? data.blank : value}`;
      if (clientX === undefined) {
        const box = cursor.getBoundingClientRect();
        say(text, box.right, box.bottom);
        map.setAttribute("aria-description", text);
      } else say(text, clientX, clientY);
    };
    map.addEventListener("pointermove", (event) => {
      const box = map.getBoundingClientRect(), scale = map.viewBox.baseVal.width / box.width;
      column = Math.floor(((event.clientX - box.left) * scale - left) / wide);
      line = Math.floor(((event.clientY - box.top) * scale - top) / tall);
      point(event.clientX, event.clientY);
    });
    const leave = () => { hush(); cursor.setAttribute("visibility", "hidden"); };
    map.addEventListener("pointerleave", leave);
    map.addEventListener("blur", leave);
    map.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      line = Math.min(data.lines.length - 1, Math.max(0, line + step[0]));
      column = Math.min(data.columns.length - 1, Math.max(0, column + step[1]));
      if (!data.columns[column]) column += step[1] || 1;  // over the gap between two rows
      point();
    });
  }
})();
