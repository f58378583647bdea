// Charts of curves and figures, drawn by uPlot: lines with bands, stacked bars at each place, and bars by name.

const FONT = '11px system-ui, sans-serif';

// A panel with a title, buttons beside it, and what it shows; a plot has the place of class `plot`.
function titledPanel(title, attributes, buttons, ...content) {
  const heading = rowElement(element('h3', {}, visible(title)), element('span', {class: 'row buttons'}, buttons));
  return element('div', {class: 'panel', ...attributes}, heading, ...content);
}

function plotPlace(title) {
  return element('div', {class: 'plot', role: 'img', 'aria-label': visible(title)});
}

// Draw into `place`, which is in the page. `spec` has x (numbers, or names of bars), xLabel, height, lines ({name, y,
// colour, title: a longer name, low, high, pale: unsmoothed values, dots: indices of the points that are marked}), and
// options: bars, stacked, points, xLog, yLog,
// range of y, top of y, sync, onClick(i). A null value is a gap in its line, an undefined one is none.
function drawPlot(place, spec) {
  const isLine = !spec.stacked && !spec.bars;
  const at = spec.bars ? spec.x.map((_, i) => i) : spec.x;
  const edges = spec.lines.map((line) => line.y);
  const nameAt = (value) => (spec.bars && value !== null ? visible(String(spec.x[value])) : number(value));
  const columns = [at];
  // Without a pointer the legend has the last value of each line, wherever that ends.
  const isUneven = () => isLine && last.some((end) => end < last[0]);
  const xText = ({cursor}, x) => ((cursor.idx ?? null) === null && isUneven() ? "each line's end" : nameAt(x));
  const series = [{label: visible(spec.xLabel), value: xText}];
  const bands = [];
  const add = (values, look) => columns.push(values) && series.push(look) - 1;
  const helper = {class: 'helper', stroke: 'transparent', points: {show: false}};
  const points = {show: isLine && Boolean(spec.points), size: at.length > 60 ? 3 : 5, ...(isLine && {filter: between})};
  if (spec.stacked) stack(edges);
  spec.lines.forEach((line, n) => {
    if (line.low) {
      const ends = [add(line.high, helper), add(line.low, helper)];
      if (isLine) bands.push({series: ends, fill: `${line.colour}33`});
    }
    if (line.pale) add(line.pale, {...helper, stroke: `${line.colour}55`, width: 1});
    add(edges[n], {
      label: visible(line.name),
      title: visible(line.title ?? line.name),
      value: (_plot, _value, _series, i) => valueText(line, i),
      stroke: line.colour,
      fill: isLine ? undefined : line.colour,
      width: isLine ? 1.8 : spec.bars ? 1 : 0,
      paths: spec.bars ? barPaths(n, spec.lines.length) : spec.stacked && uPlot.paths.bars({size: [0.95, 100, 1.5]}),
      points: {...points, fill: line.colour, ...(line.dots && {filter: () => line.dots})},
    });
  });
  const last = columns.map((values) => values.findLastIndex((value) => (value ?? null) !== null));
  const width = Math.max(220, place.clientWidth);
  const half = spec.stacked ? (at.at(-1) - at[0]) / Math.max(1, at.length - 1) / 2 || 0.5 : 0; // of a stacked bar
  const ends = [at[0] - half, at.at(-1) + half];
  const [x, y] = axes(spec, at, width);
  place.plot?.destroy();
  place.plot = new uPlot(
    {
      width,
      height: spec.height + x.size,
      padding: [null, 30, null, null],
      series,
      bands,
      axes: [x, y],
      cursor: {sync: spec.sync && {key: spec.sync}, points: {show: isLine}},
      scales: {
        x: {
          time: false,
          distr: spec.xLog ? 3 : 1,
          range: spec.bars ? [-0.5, at.length - 0.5] : half || (spec.xLog && at.length > 1) ? ends : undefined,
        },
        y: {distr: spec.yLog ? 3 : 1, range: yRange(spec, edges)},
      },
      hooks: {
        setCursor: [(plot) => plot.cursor.idx ?? plot.setLegend({idxs: last}, false)],
        draw: spec.bars ? [(plot) => drawIntervals(plot, spec.lines)] : [],
      },
    },
    columns,
    place,
  );
  place.plot.setLegend({idxs: last}, false);
  place.querySelectorAll('.u-series').forEach((row, n) => (row.title = series[n].title ?? ''));
  place.plot.over.addEventListener('click', () => spec.onClick?.(place.plot.cursor.idx));
}

// A value in the legend, with its interval.
function valueText({pale, y, low, high}, i) {
  const interval = (low?.[i] ?? null) === null ? '' : ` [${number(low[i])}, ${number(high[i])}]`;
  return number((pale ?? y)[i]) + interval;
}

function clearPlots(node) {
  for (const place of node.querySelectorAll('.plot')) place.plot?.destroy();
}

// The numbers of a plot, for a file.
function plotColumns({x, xLabel, lines}) {
  const columns = [[xLabel, x]];
  for (const {name, y, low, high} of lines) {
    columns.push([name, y]);
    if (low) columns.push([`${name} low`, low], [`${name} high`, high]);
  }
  return columns;
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

function drawIntervals({ctx, valToPos}, lines) {
  ctx.strokeStyle = colour('ink');
  lines.forEach(({low, high}, n) =>
    low?.forEach((value, i) => {
      if ((value ?? null) === null) return;
      const x = valToPos(i + barStart(n + 0.5, lines.length), 'x', true);
      ctx.beginPath();
      ctx.moveTo(x, valToPos(value, 'y', true));
      ctx.lineTo(x, valToPos(high[i], 'y', true));
      ctx.stroke();
    }),
  );
}

// Values between two gaps, which are no line, are drawn as points.
function between(plot, n, all) {
  const values = plot.data[n];
  const gap = (i) => (values[i] ?? null) === null;
  return all ? null : [...values.keys()].filter((i) => !gap(i) && gap(i - 1) && gap(i + 1));
}

// From 0, unless all values of lines are far from it; up to the end of a usual range, where the values come near to it.
function yRange({yLog, range, stacked, bars, top}, columns) {
  if (yLog) return undefined;
  if (top || !columns.flat().some(Boolean)) return [0, top || 1];
  const pad = stacked ? 0 : 0.08;
  return {min: {pad, soft: 0, mode: range || stacked || bars ? 1 : 3}, max: {pad, soft: range?.[1] ?? 0, mode: 3}};
}

// The axes of x and y. Names of bars are whole: upright where they fit, else they run down.
function axes(spec, at, width) {
  const line = {stroke: colour('line'), width: 0.7};
  const axis = (size) => ({stroke: colour('muted'), grid: line, ticks: line, font: FONT, size});
  const [x, y] = [axis(26), axis((_, names) => Math.max(56, ...(names ?? []).map((name) => 14 + 7 * name.length)))];
  const isWhole = at.every(Number.isInteger);
  const digits = (tick, step) => Math.max(3, Math.min(9, 2 + Math.ceil(Math.log10(Math.abs(tick) / step))));
  const written =
    (isShown = () => true) =>
    (_plot, ticks, _axis, _space, step) =>
      ticks.map((tick) => (tick !== null && isShown(tick) ? number(tick, digits(tick, step)) : ''));
  Object.assign(y, {values: written(), space: 20});
  x.values = written((tick) => !isWhole || Number.isInteger(tick));
  // Of the ticks of a logarithmic axis, 1, 2 and 5 of each power of ten have their numbers.
  const isRound = (tick) => !spec.xLog || '125'.includes(tick.toExponential()[0]);
  const filter = (_, ticks) => ticks.map((tick) => (isRound(tick) ? tick : null));
  Object.assign(x, {filter, space: 60, label: shortened(spec.xLabel, 60), labelSize: 18, labelGap: 3, labelFont: FONT});
  if (!spec.bars) return [x, y];
  const room = (width - 60) / at.length;
  const longest = Math.max(...spec.x.map((name) => 7 * String(name).length));
  const every = Math.ceil(14 / room);
  const turned = longest > room ? {rotate: -90, size: longest + 12} : {};
  const names = {
    splits: () => at.filter((i) => i % every === 0),
    values: (_, ticks) => ticks.map((i) => visible(String(spec.x[i]))),
  };
  return [{...x, grid: {show: false}, ...names, ...turned}, y];
}

// Turn values into upper edges of stacked bars: each holds its own value and those after it, which are drawn over it.
function stack(columns) {
  for (let n = columns.length - 2; n >= 0; n--) {
    const after = columns[n + 1];
    const isGap = (value, i) => value === null && after[i] === null;
    columns[n] = columns[n].map((value, i) => (isGap(value, i) ? null : (value ?? 0) + (after[i] ?? 0)));
  }
}
