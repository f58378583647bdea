// The page of a comparison: why runs may not compare, one chart of a metric over what the runs spent, and the tables.

let page = null;
const BANDS = [
  ['range', 'smallest to largest run'],
  ['interval', 'bootstrap 95 % of the mean'],
  ['none', 'none'],
];

async function start() {
  page = await unpack('main');
  theme(savedTheme());
  const shown = {metric: page.metric, axis: page.axes[0][0], band: 'range'};
  const chart = element('div', {class: 'panel'});
  const draw = () => {
    clearPlots(chart);
    const finding = chosenFigure(shown);
    replace(chart, figurePlace(finding));
    drawFigure(chart.querySelector('.plot'), finding, 400);
  };
  const select = (name, options) =>
    element(
      'label',
      {class: 'row muted'},
      name,
      choice(name, options, shown[name], (value) => {
        shown[name] = value;
        draw();
      }),
    );
  replace(
    document.getElementById('page'),
    element(
      'header',
      {},
      rowElement(element('h1', {}, 'Comparison of runs'), themeButton()),
      noteElement(page.groups.map(({label, runs}) => `${visible(label)} (${runs})`).join(' · ')),
    ),
    element(
      'main',
      {class: 'comparison'},
      page.flags.length ? flagPanel() : null,
      rowElement(select('metric', page.metrics), select('axis', page.axes), select('band', BANDS)),
      chart,
      noteElement(
        'Lines are means over the runs of a group. A line ends where the shortest of its runs ends; nothing is ' +
          'extrapolated. An evaluation after a step stands at the total that was spent up to the end of that step.',
      ),
      page.tables.map(findingPanel),
    ),
    element('div', {id: 'tip', hidden: true, role: 'tooltip'}),
  );
  document.addEventListener('theme', draw);
  new ResizeObserver(draw).observe(chart.parentNode);
  draw();
  document.documentElement.dataset.ready = 'yes';
}

function flagPanel() {
  return element(
    'div',
    {class: 'panel flags', 'aria-label': 'before you compare'},
    element('h3', {}, 'Before you compare'),
    element(
      'ul',
      {},
      page.flags.map(({kind, text}) => element('li', {}, element('b', {}, `${kind}: `), visible(text))),
    ),
  );
}

function chosenFigure({metric, axis, band}) {
  const {x, groups} = page.curves[metric][axis];
  const labelOf = (options, name) => options.find(([option]) => option === name)[1];
  const series = groups.map((curve, i) => {
    const ends = curve?.[band];
    return {name: page.groups[i].label, x, y: curve?.mean ?? x.map(() => null), low: ends?.[0], high: ends?.[1]};
  });
  return {title: metric, kind: 'lines', x_label: labelOf(page.axes, axis), y_label: labelOf(page.metrics, metric), series};
}

start();
