"use strict";
// Draws the data of a comparison. Every text reaches the document through textContent.
(async () => {
  const COLOURS = {
    light: ["#0072b2", "#d55e00", "#007f5f", "#b0478a", "#8a6d00", "#3f9bd8", "#6a4c2f", "#444444"],
    dark: ["#56b4e9", "#ff8c42", "#2ecc9b", "#e58ac0", "#f0e442", "#9fd3f5", "#d2a679", "#cccccc"],
  };
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const byId = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const add = (parent, tag, text, name) => {
    const element = parent.appendChild(document.createElement(tag));
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  };

  async function unpack() {
    const text = byId("data").textContent;
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  const data = await unpack();
  const hidden = new Set();
  let plot = null;

  const colour = (g) => COLOURS[dark.matches ? "dark" : "light"][g % 8];
  const faded = (g, part) => colour(g) + Math.round(255 * part).toString(16).padStart(2, "0");
  const dash = (g) => DASHES[(g + Math.floor(g / 8)) % DASHES.length];

  function number(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    return size === 0 ? "0" : String(Number(value.toPrecision(4)));
  }

  function short(value) {
    const size = Math.abs(value);
    if (size >= 1e9) return number(value / 1e9) + " G";
    if (size >= 1e6) return number(value / 1e6) + " M";
    if (size >= 1e4) return number(value / 1e3) + " k";
    return number(value);
  }

  function showFlags() {
    byId("flags").hidden = data.flags.length === 0;
    for (const flag of data.flags) {
      const item = add(byId("flag-list"), "li");
      add(item, "b", flag.kind + ":");
      item.append(flag.text);
    }
  }

  // A line for each column, where that is narrower.
  function turned(table) {
    if (table.rows.length + 1 >= table.columns.length) return table;
    const lines = table.columns.map((name, i) => [name, ...table.rows.map((row) => row[i])]);
    return { ...table, columns: lines[0], rows: lines.slice(1) };
  }

  function showTables() {
    const words = new Set(["metric", "by seed", "seeds", "run", "state", "code", "score", "setting", "seed"]);
    for (const table of data.tables) {
      const one = table.name === "final" ? turned(table) : table;
      const section = add(byId("tables"), "section");
      add(section, "h2", one.title);
      const scroll = add(section, "div", undefined, "scroll");
      scroll.tabIndex = 0;
      scroll.setAttribute("role", "region");
      scroll.setAttribute("aria-label", one.title);
      const grid = add(scroll, "table");
      grid.id = "table-" + one.name;
      const left = one.columns.map((name, i) => i === 0 || one.name === "settings" || words.has(name));
      const head = add(add(grid, "thead"), "tr");
      one.columns.forEach((name, i) => { add(head, "th", name, left[i] ? "text" : "").scope = "col"; });
      const body = add(grid, "tbody");
      for (const cells of one.rows) {
        const row = add(body, "tr");
        cells.forEach((cell, i) => {
          const text = cell === null ? "–" : String(cell);
          add(row, "td", text, (left[i] ? "text" : "") + (text.length > 40 ? " wide" : ""));
        });
      }
      if (one.note) add(section, "p", one.note, "note");
    }
  }

  function fill(select, entries, chosen) {
    for (const entry of entries) {
      const option = add(select, "option", entry.label);
      option.value = entry.name;
      option.selected = entry.name === chosen;
    }
  }

  function showLegend() {
    const svg = "http://www.w3.org/2000/svg";
    byId("legend").replaceChildren();
    data.groups.forEach((group, g) => {
      const button = add(byId("legend"), "button");
      button.type = "button";
      button.title = group.runs.join("\n");
      button.setAttribute("aria-pressed", String(!hidden.has(g)));
      const picture = button.appendChild(document.createElementNS(svg, "svg"));
      picture.setAttribute("width", "34");
      picture.setAttribute("height", "10");
      const line = picture.appendChild(document.createElementNS(svg, "line"));
      const attributes = { x1: 0, x2: 34, y1: 5, y2: 5, stroke: colour(g), "stroke-width": 3 };
      for (const [name, value] of Object.entries(attributes)) line.setAttribute(name, value);
      line.setAttribute("stroke-dasharray", dash(g).join(" "));
      add(button, "span", group.label);
      button.addEventListener("click", () => {
        hidden.has(g) ? hidden.delete(g) : hidden.add(g);
        draw();
      });
    });
  }

  // The mean of up to 2 * reach + 1 neighbouring places; a place without a value stays without.
  function smooth(values, reach) {
    if (!reach || !values) return values;
    return values.map((value, i) => {
      if (value === null) return null;
      const near = values.slice(Math.max(0, i - reach), i + reach + 1).filter((other) => other !== null);
      return near.reduce((sum, other) => sum + other, 0) / near.length;
    });
  }

  // The columns of one plot: x, and for each group its mean, the two ends of its band, and its single runs.
  function columns(curves, logarithmic) {
    const keep = curves.x.map((x) => !logarithmic || x > 0);
    const only = (values) => values.filter((_, i) => keep[i]);
    const found = { data: [only(curves.x)], series: [{}], bands: [], rows: [] };
    const reach = Number(byId("smooth").value);
    const push = (values, options) => {
      found.data.push(only(smooth(values, reach)));
      found.series.push({ points: { show: false }, spanGaps: false, ...options });
      return found.series.length - 1;
    };
    curves.groups.forEach((one, g) => {
      if (one === null || hidden.has(g)) return;
      const ends = one[byId("band").value];
      if (ends) {
        const low = push(ends[0], { stroke: "transparent", width: 0 });
        const high = push(ends[1], { stroke: "transparent", width: 0 });
        found.bands.push({ series: [high, low], fill: faded(g, 0.18) });
      }
      if (byId("each").checked) {
        for (const run of one.each) push(run.y, { stroke: faded(g, 0.55), width: 1 });
      }
      const few = curves.x.length <= 40;
      const points = { show: few, size: 6, fill: colour(g) };
      const mean = push(one.mean, { stroke: colour(g), width: 2.5, dash: dash(g), points });
      found.rows.push({ g, mean, one, ends: ends && ends.map((end) => only(smooth(end, reach))) });
    });
    return found;
  }

  function axisOptions(label, extra) {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--soft").trim();
    const grid = style.getPropertyValue("--line").trim();
    return {
      label, stroke: ink, labelFont: "13px system-ui, sans-serif", font: "12px system-ui, sans-serif", labelSize: 22,
      grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, ...extra,
    };
  }

  function draw() {
    const metric = byId("metric").value, axis = byId("axis").value, logarithmic = byId("log").checked;
    const curves = data.curves[metric][axis];
    const label = (list, name) => list.find((one) => one.name === name).label;
    const chart = byId("chart");
    const found = columns(curves, logarithmic);
    if (plot) plot.destroy();
    plot = null;
    showLegend();
    byId("readout").textContent = "";
    if (!found.rows.length || !found.data[0].length) {
      byId("readout").textContent = "No group that is shown has this metric over this axis.";
      return;
    }
    remember({ metric, axis, band: byId("band").value, smooth: byId("smooth").value });
    const options = {
      width: chart.clientWidth, height: chart.clientHeight, series: found.series, bands: found.bands,
      legend: { show: false },
      scales: { x: { time: false, distr: logarithmic ? 3 : 1 } },
      cursor: { y: false, drag: { x: true, y: false }, move: (u, left, top) => [snapped(u, left), top] },
      axes: [
        axisOptions(label(data.axes, axis), { values: (_, ticks) => ticks.map((v) => (v === null ? "" : short(v))) }),
        axisOptions(label(data.metrics, metric), { size: 56, values: (_, ticks) => ticks.map(short) }),
      ],
      hooks: { setCursor: [(u) => read(u, found, label(data.axes, axis))] },
    };
    plot = new uPlot(options, found.data, chart);
  }

  // The address names what is shown, so that a copied link shows the same.
  function remember(shown) {
    history.replaceState(null, "", "#" + new URLSearchParams(shown));
  }

  function recall() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const id of ["metric", "axis", "band", "smooth"]) {
      if ([...byId(id).options].some((option) => option.value === wanted.get(id))) byId(id).value = wanted.get(id);
    }
    return wanted.get("at");
  }

  function read(u, found, axis) {
    const i = u.cursor.idx;
    if (i === null || i === undefined) { byId("readout").textContent = ""; return; }
    const lines = [`${axis}: ${number(found.data[0][i])}`];
    for (const { g, mean, ends } of found.rows) {
      const value = found.data[mean][i];
      const range = ends ? ` (${number(ends[0][i])} to ${number(ends[1][i])})` : "";
      const text = value === null ? "not all its runs have been here" : number(value) + range;
      lines.push(`${data.groups[g].label}: ${text}`);
    }
    byId("readout").textContent = lines.join("\n");
  }

  // The cursor stands at the places whose numbers are read.
  function snapped(u, left) {
    return left < 0 ? left : u.valToPos(u.data[0][u.posToIdx(left)], "x");
  }

  function move(places) {
    const last = plot.data[0].findLastIndex((_, i) => plot.data.some((row, n) => n > 0 && row[i] !== null));
    const now = plot.cursor.idx === null || plot.cursor.idx === undefined ? -Math.sign(places) : plot.cursor.idx;
    const i = Math.max(0, Math.min(last, now + places));
    plot.setCursor({ left: plot.valToPos(plot.data[0][i], "x"), top: 10 });
  }

  function next(select) {
    select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
    draw();
  }

  function keys(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    if (event.key === "m") next(byId("metric"));
    else if (event.key === "x") next(byId("axis"));
    else if (plot && event.target === byId("chart")) {
      const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      move(step);
    }
  }

  byId("groups-line").textContent = data.groups.map((g) => `${g.label} (${g.runs.length})`).join(" · ");
  showFlags();
  showTables();
  fill(byId("metric"), data.metrics, data.metric);
  fill(byId("axis"), data.axes);
  for (const id of ["metric", "axis", "band", "smooth", "each", "log"]) byId(id).addEventListener("change", draw);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", keys);
  dark.addEventListener("change", draw);
  const place = recall();
  let waiting = 0;
  new ResizeObserver(() => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (plot) plot.setSize({ width: byId("chart").clientWidth, height: 400 }); }, 50);
  }).observe(byId("chart"));
  draw();
  await new Promise((done) => setTimeout(done)); // the plot has its scales only after this script's turn
  if (plot && place === "end") move(1e9);
  document.documentElement.dataset.ready = "yes";
})();
