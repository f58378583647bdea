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

function drawing(label, height = FRAME.height, top = 0) {
  const node = svg('svg', {
    viewBox: `0 ${-top} ${FRAME.width} ${height + top}`,
    width: '100%',
    role: 'img',
    'aria-label': visible(label),
    class: 'figure',
  });
  return showTips(node, (target) => target.dataset?.told);
}

function axisText(x, y, text, attributes = {}) {
  return svg('text', {x, y, 'text-anchor': 'middle', class: 'axis', ...attributes}, text);
}

function verticalLine(x, y1, y2) {
  return svg('line', {x1: x, x2: x, y1, y2, class: 'interval'});
}

function yAxis(node, scale, low, high, label) {
  for (const value of ticks(low, high, 4)) {
    const y = scale(value);
    node.append(
      svg('line', {x1: FRAME.left, x2: FRAME.width - FRAME.right, y1: y, y2: y, class: 'frame'}),
      axisText(FRAME.left - 5, y + 4, number(value, 3), {'text-anchor': 'end'}),
    );
  }
  const middle = (FRAME.top + FRAME.height - FRAME.bottom) / 2;
  node.append(axisText(11, middle, shortened(label, 44), {transform: `rotate(-90 11 ${middle})`}));
}

function xLabel(node, label, left = FRAME.left, y = FRAME.height - 5) {
  node.append(axisText((left + FRAME.width) / 2, y, shortened(label, 80)));
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
      mark.style.background = seriesColour(i);
      return element('span', {}, mark, visible(name));
    }),
  );
}
