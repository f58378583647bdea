// Figures of analyses, drawn from their numbers: lines, bars, points, heat maps and tables.

const FRAME = {width: 520, height: 250, left: 58, right: 14, top: 10, bottom: 40};

function figuresView() {
  const body = element('div', {class: 'figures'});
  const left = page.findings_left_out;
  const view = element(
    'section',
    {},
    page.findings.length ? null : element('p', {}, 'There are no figures for this run.'),
    left.length ? noteElement(`Too large for this page, see fr3e analyse: ${left.map(visible).join('; ')}`) : null,
    body,
  );
  view.drawn = () => {
    const columns = Math.max(1, Math.floor((body.clientWidth + 12) / 532));
    // In the units of the window, so that texts keep their size.
    FRAME.width = Math.max(240, Math.floor((body.clientWidth - 12 * (columns - 1)) / columns) - 28);
    replace(body, page.findings.map(findingPanel));
  };
  return view;
}

function findingPanel(finding) {
  const draw = {Figure: figure, HeatMap: heatMap, TextTable: findingTable}[finding.type];
  const origin = [finding.note, finding.source].filter(Boolean).join(' — ');
  return element(
    'div',
    {class: 'panel', id: `figure-${finding.name}`},
    element('h3', {}, visible(finding.title)),
    draw(finding),
    origin ? noteElement(visible(origin)) : null,
  );
}

function findingTable(finding) {
  const cell = (content) =>
    typeof content === 'number'
      ? element('td', {class: 'number'}, number(content))
      : element('td', {class: 'text'}, visible(content ?? '–'));
  return element(
    'div',
    {class: 'scroll'},
    tableElement(
      finding.columns.map(visible),
      finding.cells.map((cells) => cells.map(cell)),
    ),
  );
}

function figure(finding) {
  const named = finding.series.some((series) => series.x.some((x) => typeof x === 'string'));
  const node = drawing(finding.title);
  const bottom = FRAME.height - FRAME.bottom,
    bars = finding.kind === 'bars';
  let [low, high] = extent(
    finding.series.flatMap((series) => [...series.y, ...(series.low ?? []), ...(series.high ?? [])]),
  );
  if (bars || (low > 0 && low < 0.4 * high)) [low, high] = [Math.min(0, low), Math.max(0, high)];
  const room = (high - low || 1) * 0.06;
  const y = linear(low === 0 ? 0 : low - room, high + room, bottom, FRAME.top);
  yAxis(node, y, low, high, finding.y_label);
  xLabel(node, finding.x_label);
  if (named || bars) categories(node, finding, y, bottom);
  else points(node, finding, y, bottom);
  return element('div', {}, seriesLegend(finding.series.map((series) => series.name)), node);
}

function told(finding, series, i) {
  const interval = series.low ? ` [${number(series.low[i])}, ${number(series.high[i])}]` : '';
  const x = typeof series.x[i] === 'number' ? number(series.x[i]) : visible(series.x[i]);
  return `${visible(series.name)}\n${visible(finding.x_label)}: ${x}\n${visible(finding.y_label)}: ${number(series.y[i])}${interval}`;
}

function seriesColour(s) {
  return `var(--c${(s % 8) + 1})`;
}

// A mark in the colour of its series that shows its numbers when the pointer is over it.
function markOf(name, attributes, finding, s, i) {
  const mark = svg(name, attributes);
  mark.style.fill = seriesColour(s);
  mark.dataset.told = told(finding, finding.series[s], i);
  return mark;
}

function categories(node, finding, y, bottom) {
  const names = [...new Set(finding.series.flatMap((series) => series.x))];
  if (names.every((name) => typeof name === 'number')) names.sort((a, b) => a - b);
  const width = (FRAME.width - FRAME.left - FRAME.right) / Math.max(1, names.length);
  const bar = Math.min(48, (0.8 * width) / finding.series.length);
  const every = Math.ceil(44 / width);
  const longest = Math.max(3, Math.floor((width * every) / 6.2));
  names.forEach((name, n) => {
    const label = shortened(typeof name === 'number' ? number(name, 3) : name, longest);
    if (n % every === 0) node.append(axisText(FRAME.left + (n + 0.5) * width, bottom + 15, label));
  });
  finding.series.forEach((series, s) =>
    series.x.forEach((name, i) => {
      if (series.y[i] === null) return;
      const x = FRAME.left + (names.indexOf(name) + 0.5) * width + (s - finding.series.length / 2) * bar;
      const height = Math.max(0.5, Math.abs(y(series.y[i]) - y(0)));
      const box = {x, y: Math.min(y(series.y[i]), y(0)), width: Math.max(0.5, bar - 1), height};
      const mark =
        finding.kind === 'bars'
          ? markOf('rect', box, finding, s, i)
          : markOf('circle', {cx: x + bar / 2, cy: y(series.y[i]), r: 4}, finding, s, i);
      node.append(mark);
      if (series.low && series.low[i] !== null)
        node.append(verticalLine(x + bar / 2, y(series.low[i]), y(series.high[i])));
    }),
  );
}

function points(node, finding, y, bottom) {
  const place = (x) => (finding.log_x ? Math.log10(Math.max(x, 1e-12)) : x);
  const [low, high] = extent(finding.series.flatMap((series) => series.x.map(place)));
  const scale = linear(low, high, FRAME.left + 6, FRAME.width - FRAME.right - 6);
  const x = (value) => scale(place(value));
  for (const tick of finding.log_x ? decades(10 ** low, 10 ** high) : ticks(low, high, 6))
    node.append(axisText(x(tick), bottom + 15, number(tick, 4)));
  finding.series.forEach((series, s) => {
    const measured = series.x
      .map((_, i) => i)
      .filter((i) => series.y[i] !== null)
      .sort((a, b) => series.x[a] - series.x[b]);
    const at = (i, value) => `${x(series.x[i]).toFixed(1)},${y(value).toFixed(1)}`;
    const within = measured.filter((i) => series.low && series.low[i] !== null && series.high[i] !== null);
    if (finding.kind === 'lines') {
      const edge = [
        ...within.map((i) => at(i, series.high[i])),
        ...within.toReversed().map((i) => at(i, series.low[i])),
      ];
      const band = svg('polygon', {points: edge.join(' '), opacity: 0.2});
      band.style.fill = seriesColour(s);
      const path = measured.map((i) => at(i, series.y[i])).join(' ');
      const line = svg('polyline', {points: path, fill: 'none', 'stroke-width': 1.8});
      line.style.stroke = seriesColour(s);
      node.append(band, line);
    } else {
      node.append(...within.map((i) => verticalLine(x(series.x[i]), y(series.low[i]), y(series.high[i]))));
    }
    const r = finding.kind === 'points' ? 3 : measured.length > 60 ? 1.6 : 2.6;
    node.append(
      ...measured.map((i) => markOf('circle', {cx: x(series.x[i]), cy: y(series.y[i]), r}, finding, s, i)),
    );
  });
}

// Values by colour at the crossings of two axes.
function heatMap(finding) {
  const {columns, lines} = finding;
  const [low, high] = extent(finding.values.flat());
  const left = Math.min(150, 14 + 6.5 * Math.max(0, ...lines.map((line) => String(line).length)));
  const width = Math.max(1.2, (FRAME.width - left - FRAME.right) / Math.max(1, columns.length));
  const height = Math.max(3, Math.min(16, 420 / Math.max(1, lines.length)));
  const bottom = lines.length * height;
  const node = drawing(finding.title, bottom + 42, 5);
  const everyLine = Math.ceil(11 / height),
    everyColumn = Math.ceil(40 / width);
  lines.forEach((line, r) => {
    if (r % everyLine === 0)
      node.append(axisText(left - 5, (r + 0.5) * height + 4, shortened(line, 22), {'text-anchor': 'end'}));
    finding.values[r].forEach((value, c) => {
      if (value === null) return;
      const share = high > low ? (value - low) / (high - low) : 1;
      const cell = svg('rect', {x: left + c * width, y: r * height, width: width + 0.3, height: height + 0.3});
      cell.style.fill = rewardColour(share);
      cell.dataset.told = visible(
        `${finding.y_label}: ${line}\n${finding.x_label}: ${columns[c]}\n${number(value)} ${finding.unit}`,
      );
      node.append(cell);
    });
  });
  columns.forEach((column, c) => {
    if (c % everyColumn === 0) node.append(axisText(left + (c + 0.5) * width, bottom + 15, shortened(column, 12)));
  });
  xLabel(node, finding.x_label, left, bottom + 36);
  const ramp = element('i', {class: 'ramp reward'});
  const key = element('span', {}, number(low), ramp, `${number(high)} ${visible(finding.unit)}`);
  return element('div', {}, element('div', {class: 'key'}, key), node);
}
