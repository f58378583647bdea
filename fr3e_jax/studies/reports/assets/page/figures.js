// Figures of analyses, drawn from their numbers: charts, heat maps and tables.

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
    clearPlots(body);
    const panels = page.findings.map((finding) => [findingPanel(finding), finding]);
    replace(body, panels.map(([panel]) => panel));
    for (const [panel, finding] of panels) if (finding.type === 'Figure') drawFigure(panel.querySelector('.plot'), finding);
  };
  return view;
}

// The panel of a finding. A figure is drawn into its place once that is in the page.
function findingPanel(finding) {
  const content = {Figure: figurePlace, HeatMap: heatMap, TextTable: findingTable}[finding.type](finding);
  const origin = [finding.note, finding.source].filter(Boolean).join(' — ');
  return element(
    'div',
    {class: 'panel', id: `figure-${finding.name}`},
    element('h3', {}, visible(finding.title)),
    content,
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

function figurePlace({title, series}) {
  const entries = series.map(({name}, n) => legendEntry(`var(--c${(n % 8) + 1})`, visible(name)));
  return element(
    'div',
    {class: 'figure'},
    series.length > 1 ? element('div', {class: 'legend'}, entries) : null,
    element('div', {class: 'plot', role: 'img', 'aria-label': visible(title)}),
  );
}

// All series of a figure on one axis. Under the pointer, a tip has the numbers of all of them.
function drawFigure(place, finding, height = 250) {
  const x = [...new Set(finding.series.flatMap((series) => series.x))];
  if (x.every((value) => typeof value === 'number')) x.sort((a, b) => a - b);
  const lines = finding.series.map((series, n) => {
    const placeOf = new Map(series.x.map((value, i) => [value, i]));
    const column = (values) => values && x.map((value) => values[placeOf.get(value)]);
    const [y, low, high] = [series.y, series.low, series.high].map(column);
    return {name: series.name, y, low, high, colour: colour(`c${(n % 8) + 1}`)};
  });
  const told = (i) =>
    lines
      .filter((line) => (line.y[i] ?? null) !== null)
      .map(({name, y, low, high}) => {
        const interval = low && (low[i] ?? null) !== null ? ` [${number(low[i])}, ${number(high[i])}]` : '';
        return `${visible(name)}: ${number(y[i])}${interval}`;
      });
  drawPlot(place, {
    ...{x, lines, height, bars: finding.kind === 'bars', points: true, xLog: finding.log_x},
    xLabel: finding.x_label,
    yLabel: finding.y_label,
    onCursor: (i, plot) => {
      if (i === null) return hideTip();
      const {left, top} = plot.over.getBoundingClientRect();
      const where = `${visible(finding.x_label)}: ${typeof x[i] === 'number' ? number(x[i]) : visible(x[i])}`;
      tip({clientX: left + plot.cursor.left, clientY: top + plot.cursor.top}, [where, ...told(i)].join('\n'));
    },
  });
}

// Values by colour at the crossings of two axes.
function heatMap({columns, lines, values, unit, x_label: xLabel, y_label: yLabel}) {
  const measured = values.flat().filter((value) => value !== null);
  const [low, high] = [Math.min(...measured), Math.max(...measured)];
  const every = Math.ceil(columns.length / 6);
  const cell = (value, r, c) => {
    const title = visible(`${yLabel}: ${lines[r]}\n${xLabel}: ${columns[c]}\n${number(value)} ${unit}`);
    const box = element('td', {title});
    if (value !== null) box.style.background = rewardColour(high > low ? (value - low) / (high - low) : 1);
    return box;
  };
  const ramp = element('i', {class: 'ramp reward'});
  return element(
    'div',
    {class: 'heat'},
    element('div', {class: 'key'}, element('span', {}, number(low), ramp, `${number(high)} ${visible(unit)}`)),
    tableElement(
      [visible(xLabel), ...columns.map((column, c) => (c % every ? '' : shortened(column, 12)))],
      lines.map((line, r) => [element('th', {}, shortened(line, 22)), ...values[r].map((value, c) => cell(value, r, c))]),
    ),
  );
}
