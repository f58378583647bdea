// Charts of curves and figures, drawn by uPlot: lines with bands, stacked bars at each place, and bars by name.

// Draw into `place`, which is in the page. `spec` has x (numbers, or names of bars), lines ({name, y, low, high, colour,
// pale: unsmoothed values}), height, labels of the axes, and options: bars, stacked, points, xLog, yLog, range of y,
// top of y, sync, onCursor(i, plot), onClick(i). A null value is a gap in its line, an undefined one is none.
function drawPlot(place, spec) {
  const columns = [],
    series = [{}],
    bands = [],
    edges = spec.stacked ? stacked(spec.lines.map((line) => line.y)) : spec.lines.map((line) => line.y);
  const add = (values, look) => {
    columns.push(values);
    return series.push(look) - 1;
  };
  const isLine = !spec.stacked && !spec.bars;
  const hidden = {stroke: 'transparent', points: {show: false}};
  spec.lines.forEach((line, n) => {
    if (line.low) {
      const ends = [add(line.high, hidden), add(line.low, hidden)];
      if (!spec.bars) bands.push({series: ends, fill: `${line.colour}33`});
    }
    if (line.pale) add(line.pale, {stroke: `${line.colour}55`, width: 1, points: {show: false}});
    const size = spec.x.length > 60 ? 3 : 5;
    const drawn = add(edges[n], {
      stroke: line.colour,
      fill: isLine ? undefined : line.colour,
      width: isLine ? 1.8 : spec.bars ? 1 : 0,
      paths: isLine ? undefined : spec.bars ? barPaths(n, spec.lines.length) : uPlot.paths.bars({size: [0.95, 100, 1.5]}),
      points: {show: isLine && Boolean(spec.points), ...(isLine ? {filter: between} : {}), size, fill: line.colour},
    });
  });
  const at = spec.bars ? spec.x.map((_, i) => i) : spec.x;
  place.plot?.destroy();
  place.plot = new uPlot(
    {
      width: Math.max(220, place.clientWidth),
      height: spec.height,
      padding: spec.xLabel ? [null, 30, null, null] : undefined,
      series,
      bands,
      legend: {show: false},
      cursor: {sync: spec.sync ? {key: spec.sync} : undefined, points: {show: !spec.stacked && !spec.bars}},
      scales: {
        x: {time: false, distr: spec.xLog ? 3 : 1, range: spec.bars ? [-0.5, at.length - 0.5] : xRange(spec)},
        y: {distr: spec.yLog ? 3 : 1, range: yRange(spec)},
      },
      axes: axes(spec, at, Math.max(220, place.clientWidth)),
      hooks: {
        setCursor: [(plot) => spec.onCursor?.(plot.cursor.left < 0 ? null : (plot.cursor.idx ?? null), plot)],
        draw: spec.bars ? [(plot) => drawIntervals(plot, spec.lines)] : [],
      },
    },
    [at, ...columns],
    place,
  );
  place.plot.over.addEventListener('click', () => {
    const i = place.plot.cursor.idx;
    if (i !== null && i !== undefined) spec.onClick?.(i);
  });
}

function clearPlots(node) {
  for (const place of node.querySelectorAll('.plot')) place.plot?.destroy();
}

// Bars of series `n` of `count` stand side by side in the middle 80 % of their name's place.
const BARS = 0.8;

function barStart(n, count) {
  return (n / count - 0.5) * BARS;
}

function barPaths(n, count) {
  return uPlot.paths.bars({
    disp: {
      x0: {unit: 1, values: (plot) => plot.data[0].map((i) => i + barStart(n, count))},
      size: {unit: 1, values: () => [(0.94 * BARS) / count]},
    },
  });
}

function drawIntervals(plot, lines) {
  lines.forEach((line, n) =>
    line.low?.forEach((low, i) => {
      if (low === null || low === undefined) return;
      const x = plot.valToPos(i + barStart(n + 0.5, lines.length), 'x', true);
      plot.ctx.strokeStyle = colour('ink');
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, plot.valToPos(low, 'y', true));
      plot.ctx.lineTo(x, plot.valToPos(line.high[i], 'y', true));
      plot.ctx.stroke();
    }),
  );
}

function xRange({x, xLog}) {
  return xLog ? [x[0] * 0.98, x.at(-1) * 1.02] : undefined;
}

// Values between two gaps, which are no line, are drawn as points.
function between(plot, n, all) {
  const values = plot.data[n],
    gap = (value) => value === null || value === undefined;
  return all ? null : [...values.keys()].filter((i) => !gap(values[i]) && gap(values[i - 1]) && gap(values[i + 1]));
}

function yRange({yLog, range, stacked, bars, top}) {
  if (yLog) return undefined;
  if (top) return [0, top];
  return (_, low, high) => {
    if (low === null) return [0, 1];
    if (range) return [Math.min(range[0], low), Math.max(high * 1.05, Math.min(range[1], high + 0.1))];
    if (stacked) return [0, high];
    const pad = (high - low || Math.abs(high) || 1) * 0.08;
    if (bars) return [low < 0 ? low - pad : 0, Math.max(0, high + pad)];
    return [low >= 0 && low - pad < 0.5 * high ? 0 : low - pad, high + pad];
  };
}

function axes(spec, at, width) {
  const axis = (label, size) => ({
    stroke: colour('muted'),
    grid: {stroke: colour('line'), width: 0.7},
    ticks: {stroke: colour('line'), width: 0.7},
    font: '11px system-ui, sans-serif',
    size,
    ...(label ? {label: shortened(label, 60), labelSize: 18, labelGap: 3, labelFont: '11px system-ui, sans-serif'} : {}),
  });
  const whole = at.every(Number.isInteger);
  const x = axis(spec.xLabel, 26),
    y = axis(spec.yLabel, 52);
  x.space = 60;
  x.values = (_, ticks) => ticks.map((tick) => (tick === null || (whole && !Number.isInteger(tick)) ? '' : number(tick)));
  y.values = (_, ticks) => ticks.map((tick) => (tick === null ? '' : spec.yLog ? exponent(tick) : number(tick, 3)));
  if (spec.yLog) {
    const isPower = (tick) => Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9;
    y.filter = (_, ticks) => ticks.map((tick) => (isPower(tick) ? tick : null));
  }
  if (spec.xLog) {
    x.splits = () => logTicks(at[0], at.at(-1));
    x.filter = (_, ticks) => ticks;
  }
  if (spec.bars) {
    const room = (width - 60) / at.length,
      every = Math.ceil(44 / room);
    x.grid = {show: false};
    x.splits = () => at.filter((i) => i % every === 0);
    x.values = (_, ticks) => ticks.map((i) => shortened(spec.x[i], Math.max(3, Math.floor((room * every) / 7))));
  }
  return [x, y];
}

function exponent(value) {
  return value >= 0.01 && value < 1e5 ? number(value, 2) : value.toExponential(0).replace('-', '−').replace('e+', 'e');
}

// 1, 2 and 5 of each power of ten; on a short axis, equal ratios.
function logTicks(low, high) {
  const ticks = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
    ticks.push(...[1, 2, 5].map((n) => n * power).filter((tick) => low <= tick && tick <= high));
  return ticks.length > 2 ? ticks : [0, 1, 2, 3].map((n) => Number((low * (high / low) ** (n / 3)).toPrecision(3)));
}

// Upper edges of stacked bars: each holds its own value and those after it, which are drawn over it.
function stacked(columns) {
  const edges = columns.map((column) => column.slice());
  for (let i = columns.length - 2; i >= 0; i--) {
    edges[i] = edges[i].map((value, n) =>
      value === null && edges[i + 1][n] === null ? null : (value ?? 0) + (edges[i + 1][n] ?? 0),
    );
  }
  return edges;
}

// A mark in a colour and a text.
function legendEntry(tone, text, title = null, block = true) {
  const mark = element('i', {class: block ? 'block' : null});
  mark.style.background = tone;
  return element('span', {title}, mark, text);
}
