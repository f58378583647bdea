// Figures of analyses, drawn from their numbers: lines, bars, points, heat maps and tables.

const FRAME = {width: 520, height: 250, left: 58, right: 14, top: 10, bottom: 40};

function figuresView() {
  const body = element('div', {class: 'figures'});
  const left = page.findings_left_out;
  const view = element(
    'section',
    {},
    page.findings.length ? null : element('p', {}, 'There are no figures for this run.'),
    left.length
      ? element('p', {class: 'note'}, `Too large for this page, see fr3e analyse: ${left.map(visible).join('; ')}`)
      : null,
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
  const draw = {figure: figure, heat_map: heatMap, table: findingTable}[finding.type];
  return element(
    'div',
    {class: 'panel', id: `figure-${finding.name}`},
    element('h3', {}, visible(finding.title)),
    draw(finding),
    finding.note || finding.source
      ? element('p', {class: 'note'}, visible([finding.note, finding.source].filter(Boolean).join(' — ')))
      : null,
  );
}

function findingTable(finding) {
  return element(
    'div',
    {class: 'scroll'},
    element(
      'table',
      {},
      element(
        'thead',
        {},
        element(
          'tr',
          {},
          finding.columns.map((name) => element('th', {}, visible(name))),
        ),
      ),
      element(
        'tbody',
        {},
        finding.cells.map((row) =>
          element(
            'tr',
            {},
            row.map((cell) =>
              typeof cell === 'number'
                ? element('td', {class: 'number'}, number(cell))
                : element('td', {class: 'text'}, visible(cell ?? '–')),
            ),
          ),
        ),
      ),
    ),
  );
}

function figure(finding) {
  const named = finding.series.some((series) => series.x.some((x) => typeof x === 'string'));
  const node = drawing(visible(finding.title));
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
  node.addEventListener('pointermove', (event) => {
    if (event.target.dataset?.told) tip(event, event.target.dataset.told);
    else hideTip();
  });
  node.addEventListener('pointerleave', hideTip);
  return element('div', {}, seriesLegend(finding.series.map((series) => series.name)), node);
}

function told(finding, series, i) {
  const interval = series.low ? ` [${number(series.low[i])}, ${number(series.high[i])}]` : '';
  const x = typeof series.x[i] === 'number' ? number(series.x[i]) : visible(series.x[i]);
  return `${visible(series.name)}\n${visible(finding.x_label)}: ${x}\n${visible(finding.y_label)}: ${number(series.y[i])}${interval}`;
}

function categories(node, finding, y, bottom) {
  const names = [...new Set(finding.series.flatMap((series) => series.x))];
  if (names.every((name) => typeof name === 'number')) names.sort((a, b) => a - b);
  const width = (FRAME.width - FRAME.left - FRAME.right) / Math.max(1, names.length);
  const bar = Math.min(48, (0.8 * width) / finding.series.length);
  const every = Math.ceil(44 / width);
  names.forEach((name, n) => {
    if (n % every === 0)
      node.append(
        svg(
          'text',
          {x: FRAME.left + (n + 0.5) * width, y: bottom + 15, 'text-anchor': 'middle', class: 'axis'},
          shortened(typeof name === 'number' ? number(name, 3) : name, Math.max(3, Math.floor((width * every) / 6.2))),
        ),
      );
  });
  finding.series.forEach((series, s) =>
    series.x.forEach((name, i) => {
      if (series.y[i] === null) return;
      const x = FRAME.left + (names.indexOf(name) + 0.5) * width + (s - finding.series.length / 2) * bar;
      const top = Math.min(y(series.y[i]), y(0));
      const mark =
        finding.kind === 'bars'
          ? svg('rect', {
              x,
              y: top,
              width: Math.max(0.5, bar - 1),
              height: Math.max(0.5, Math.abs(y(series.y[i]) - y(0))),
            })
          : svg('circle', {cx: x + bar / 2, cy: y(series.y[i]), r: 4});
      mark.style.fill = `var(--c${(s % 8) + 1})`;
      mark.dataset.told = told(finding, series, i);
      node.append(mark);
      if (series.low && series.low[i] !== null)
        node.append(
          svg('line', {
            x1: x + bar / 2,
            x2: x + bar / 2,
            y1: y(series.low[i]),
            y2: y(series.high[i]),
            class: 'interval',
          }),
        );
    }),
  );
}

function points(node, finding, y, bottom) {
  const place = (x) => (finding.log_x ? Math.log10(Math.max(x, 1e-12)) : x);
  const [low, high] = extent(finding.series.flatMap((series) => series.x.map(place)));
  const x = linear(low, high, FRAME.left + 6, FRAME.width - FRAME.right - 6);
  for (const tick of finding.log_x ? decades(10 ** low, 10 ** high) : ticks(low, high, 6)) {
    node.append(
      svg('text', {x: x(place(tick)), y: bottom + 15, 'text-anchor': 'middle', class: 'axis'}, number(tick, 4)),
    );
  }
  finding.series.forEach((series, s) => {
    const stroke = `var(--c${(s % 8) + 1})`;
    const known = series.x
      .map((_, i) => i)
      .filter((i) => series.y[i] !== null)
      .sort((a, b) => series.x[a] - series.x[b]);
    const at = (i, value) => `${x(place(series.x[i])).toFixed(1)},${y(value).toFixed(1)}`;
    if (series.low && finding.kind === 'lines') {
      const within = known.filter((i) => series.low[i] !== null && series.high[i] !== null);
      const band = svg('polygon', {
        points: [
          ...within.map((i) => at(i, series.high[i])),
          ...within.reverse().map((i) => at(i, series.low[i])),
        ].join(' '),
        opacity: 0.2,
      });
      band.style.fill = stroke;
      node.append(band);
    }
    if (finding.kind === 'lines') {
      const line = svg('polyline', {
        points: known.map((i) => at(i, series.y[i])).join(' '),
        fill: 'none',
        'stroke-width': 1.8,
      });
      line.style.stroke = stroke;
      node.append(line);
    }
    for (const i of known) {
      if (series.low && finding.kind === 'points' && series.low[i] !== null) {
        node.append(
          svg('line', {
            x1: x(place(series.x[i])),
            x2: x(place(series.x[i])),
            y1: y(series.low[i]),
            y2: y(series.high[i]),
            class: 'interval',
          }),
        );
      }
      const mark = svg('circle', {
        cx: x(place(series.x[i])),
        cy: y(series.y[i]),
        r: finding.kind === 'points' ? 3 : known.length > 60 ? 1.6 : 2.6,
      });
      mark.style.fill = stroke;
      mark.dataset.told = told(finding, series, i);
      node.append(mark);
    }
  });
}
