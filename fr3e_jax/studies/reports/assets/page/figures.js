// Figures of analyses, drawn from their numbers: charts, heat maps and tables, with an index.

function figuresView(node) {
  let shown = null;
  const panels = page.findings.map(findingPanel);
  const show = (name) => {
    shown = name;
    document.getElementById(`figure-${name}`)?.scrollIntoView();
  };
  node.querySelector('.note').textContent = visible(page.findings_note);
  replace(node.querySelector('.figures'), panels);
  const address = (name) => `#view=figures&figure=${encodeURIComponent(name)}`;
  const links = page.findings.map(({name, title}) => element('a', {href: address(name)}, visible(title)));
  replace(node.querySelector('.index'), links);
  return {
    drawn: () => panels.forEach((panel) => panel.draw()),
    state: () => [['figure', shown]],
    restore: (state) => show(state.get('figure')),
  };
}

// The panel of a finding. Once it is in the page, `draw` draws its plot.
function findingPanel(finding) {
  const contents = {Figure: figureContent, HeatMap: heatMap, TextTable: findingTable};
  const [content, numbers] = contents[finding.type](finding);
  const buttons = numbers && saveButton(finding.title, numbers);
  const origin = [finding.note, finding.source].filter(Boolean).join(' — ');
  const note = origin && noteElement(visible(origin));
  const panel = titledPanel(finding.title, {id: `figure-${finding.name}`}, buttons, content, note);
  panel.draw = (height) => finding.type === 'Figure' && drawFigure(panel, finding, height);
  return panel;
}

function figureContent({title, y_label: yLabel}) {
  return [element('div', {class: 'figure'}, element('small', {class: 'muted'}, visible(yLabel)), plotPlace(title))];
}

// All series of a figure on one axis.
function drawFigure(panel, finding, height = 225) {
  const x = [...new Set(finding.series.flatMap((series) => series.x))];
  if (x.every((value) => typeof value === 'number')) x.sort((a, b) => a - b);
  const lines = finding.series.map((series, n) => {
    const placeOf = new Map(series.x.map((value, i) => [value, i]));
    const column = (values) => values && x.map((value) => values[placeOf.get(value)]);
    const [y, low, high] = [series.y, series.low, series.high].map(column);
    return {name: series.name, y, low, high, dots: series.dots, colour: colour(`c${(n % 8) + 1}`)};
  });
  const bars = finding.kind === 'bars';
  const spec = {x, xLabel: finding.x_label, lines, height, bars, points: true, xLog: finding.log_x};
  drawPlot(panel.querySelector('.plot'), spec);
  replace(panel.querySelector('.buttons'), saveButton(finding.title, plotColumns(spec)));
}

function findingTable({columns, cells}) {
  const cell = (content) =>
    typeof content === 'number'
      ? element('td', {class: 'number'}, number(content))
      : element('td', {class: 'text'}, visible(content ?? '–'));
  const rows = cells.map((row) => row.map(cell));
  const table = tableElement(columns.map(visible), rows);
  return [element('div', {class: 'scroll'}, table), columns.map((name, n) => [name, cells.map((row) => row[n])])];
}

// Values by colour at the crossings of two axes, on a scale that holds 0 and 1.
function heatMap({columns, lines, values, unit, x_label: xLabel, y_label: yLabel}) {
  const measured = values.flat().filter((value) => value !== null);
  const [low, high] = [Math.min(0, ...measured), Math.max(1, ...measured)];
  const every = Math.ceil(columns.length / 6);
  const cell = (value, r, c) => {
    const title = visible(`${yLabel}: ${lines[r]}\n${xLabel}: ${columns[c]}\n${number(value)} ${unit}`);
    const box = element('td', {title});
    if (value !== null) box.style.background = rewardColour((value - low) / (high - low));
    return box;
  };
  const ramp = element('i', {class: 'ramp reward'});
  const ends = [number(low), `${number(high)} ${unit}`];
  const key = element('div', {class: 'key'}, element('span', {}, ends[0], ramp, visible(ends[1])));
  const table = tableElement(
    [visible(xLabel), ...columns.map((column, c) => (c % every ? '' : visible(String(column))))],
    values.map((row, r) => [element('th', {}, visible(String(lines[r]))), ...row.map((value, c) => cell(value, r, c))]),
  );
  const at = (column) => values.flatMap((row, r) => row.map((value, c) => column(r, c, value)));
  const numbers = [
    [yLabel, at((r) => lines[r])],
    [xLabel, at((_r, c) => columns[c])],
    [unit || 'value', at((_r, _c, value) => value)],
  ];
  return [element('div', {class: 'heat'}, key, table), numbers];
}
