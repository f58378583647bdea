// A heat map: values by colour at the crossings of two axes.

function heatMap(finding) {
  const {columns, lines} = finding;
  const [low, high] = extent(finding.values.flat());
  const left = Math.min(150, 14 + 6.5 * Math.max(0, ...lines.map((line) => String(line).length)));
  const width = Math.max(1.2, (FRAME.width - left - FRAME.right) / Math.max(1, columns.length));
  const height = Math.max(3, Math.min(16, 420 / Math.max(1, lines.length)));
  const total = lines.length * height + 42;
  const node = svg('svg', {
    viewBox: `0 -5 ${FRAME.width} ${total + 5}`,
    width: '100%',
    role: 'img',
    'aria-label': visible(finding.title),
    class: 'figure',
  });
  const everyLine = Math.ceil(11 / height),
    everyColumn = Math.ceil(40 / width);
  lines.forEach((line, r) => {
    if (r % everyLine === 0)
      node.append(
        svg('text', {x: left - 5, y: (r + 0.5) * height + 4, 'text-anchor': 'end', class: 'axis'}, shortened(line, 22)),
      );
    finding.values[r].forEach((value, c) => {
      if (value === null) return;
      const share = high > low ? (value - low) / (high - low) : 1;
      const cell = svg('rect', {x: left + c * width, y: r * height, width: width + 0.3, height: height + 0.3});
      cell.style.fill = rewardColour(share);
      cell.dataset.told = `${visible(finding.y_label)}: ${visible(String(line))}\n${visible(finding.x_label)}: ${visible(String(columns[c]))}\n${number(value)} ${visible(finding.unit)}`;
      node.append(cell);
    });
  });
  columns.forEach((column, c) => {
    if (c % everyColumn === 0)
      node.append(
        svg(
          'text',
          {x: left + (c + 0.5) * width, y: lines.length * height + 15, 'text-anchor': 'middle', class: 'axis'},
          shortened(column, 12),
        ),
      );
  });
  node.append(
    svg(
      'text',
      {x: (left + FRAME.width) / 2, y: total - 6, 'text-anchor': 'middle', class: 'axis'},
      shortened(finding.x_label, 80),
    ),
  );
  node.addEventListener('pointermove', (event) => {
    if (event.target.dataset?.told) tip(event, event.target.dataset.told);
    else hideTip();
  });
  node.addEventListener('pointerleave', hideTip);
  return element(
    'div',
    {},
    element(
      'div',
      {class: 'key'},
      element(
        'span',
        {},
        number(low),
        element('i', {class: 'ramp reward'}),
        `${number(high)} ${visible(finding.unit)}`,
      ),
    ),
    node,
  );
}
