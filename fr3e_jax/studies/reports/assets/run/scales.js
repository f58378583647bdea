// Axes of figures: places, ticks and labels.

function linear(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((to - from) * (value - low)) / span;
}

function ticks(low, high, wanted) {
  const rough = (high - low || 1) / wanted,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((size) => size >= rough);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++)
    found.push(Number((n * step).toPrecision(12)));
  return found;
}

// 1, 2 and 5 of each power of ten; over more than three of these the powers alone.
function decades(low, high) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high * 1.001; power *= 10) {
    for (const n of high / low > 1000 ? [1] : [1, 2, 5]) {
      const tick = Number((n * power).toPrecision(6));
      if (tick >= low * 0.999 && tick <= high * 1.001) found.push(tick);
    }
  }
  return found;
}

function extent(values) {
  let low = Infinity,
    high = -Infinity;
  for (const value of values)
    if (Number.isFinite(value)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  return low > high ? [0, 1] : [low, high];
}

function drawing(label) {
  const node = svg('svg', {
    viewBox: `0 0 ${FRAME.width} ${FRAME.height}`,
    width: '100%',
    role: 'img',
    'aria-label': label,
    class: 'figure',
  });
  return node;
}

function yAxis(node, scale, low, high, label) {
  for (const value of ticks(low, high, 4)) {
    node.append(
      svg('line', {x1: FRAME.left, x2: FRAME.width - FRAME.right, y1: scale(value), y2: scale(value), class: 'frame'}),
      svg('text', {x: FRAME.left - 5, y: scale(value) + 4, 'text-anchor': 'end', class: 'axis'}, number(value, 3)),
    );
  }
  const middle = (FRAME.top + FRAME.height - FRAME.bottom) / 2;
  node.append(
    svg(
      'text',
      {x: 11, y: middle, 'text-anchor': 'middle', transform: `rotate(-90 11 ${middle})`, class: 'axis'},
      shortened(label, 44),
    ),
  );
}

function xLabel(node, label) {
  node.append(
    svg(
      'text',
      {x: (FRAME.left + FRAME.width) / 2, y: FRAME.height - 5, 'text-anchor': 'middle', class: 'axis'},
      shortened(label, 80),
    ),
  );
}

function shortened(text, length) {
  const seen = visible(String(text));
  return seen.length > length ? `${seen.slice(0, length - 1)}…` : seen;
}

function seriesLegend(names) {
  if (names.length < 2) return null;
  return element(
    'div',
    {class: 'legend'},
    names.map((name, i) => {
      const mark = element('i', {class: 'block'});
      mark.style.background = `var(--c${(i % 8) + 1})`;
      return element('span', {}, mark, visible(name));
    }),
  );
}
