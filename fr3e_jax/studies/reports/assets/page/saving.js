// What a reader takes out of a page: files that the browser makes itself, and copies.

function saveFile(name, content) {
  const link = element('a', {href: URL.createObjectURL(content), download: name.replace(/[^\w.@-]+/g, '_')});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Buttons that save the numbers of a chart, columns as [name, values], and its picture with title and legend.
function saveButtons(title, columns, place, lines) {
  const save = (label, action) => button(label, action, {'aria-label': `${visible(title)}: save as ${label.toUpperCase()}`});
  return [
    save('csv', () => saveFile(`${title}.csv`, new Blob([csv(columns())], {type: 'text/csv'}))),
    save('png', () => picture(title, place, lines).toBlob((content) => saveFile(`${title}.png`, content))),
  ];
}

// Numbers and quoted texts; a text that a spreadsheet would read as a formula gets an apostrophe.
function csv(columns) {
  const cell = (value) =>
    value === null || value === undefined
      ? ''
      : typeof value === 'number'
        ? String(value)
        : `"${visible(value).replace(/^[=+\-@]/, "'$&").replaceAll('"', '""')}"`;
  const rows = columns[0][1].map((_, i) => columns.map(([, values]) => cell(values[i])).join(','));
  return [columns.map(([name]) => cell(name)).join(','), ...rows, ''].join('\n');
}

function picture(title, place, lines) {
  const plot = place.querySelector('canvas'),
    scale = devicePixelRatio,
    line = 18 * scale,
    canvas = element('canvas', {width: plot.width, height: plot.height + (lines.length + 2) * line}),
    pen = canvas.getContext('2d');
  const write = (text, x, y, tone, bold = '') => {
    pen.fillStyle = tone;
    pen.font = `${bold} ${13 * scale}px system-ui, sans-serif`;
    pen.fillText(text, x, y);
  };
  pen.fillStyle = colour('panel');
  pen.fillRect(0, 0, canvas.width, canvas.height);
  write(visible(title), line, line, colour('ink'), 'bold');
  lines.forEach((one, n) => write(`■ ${visible(one.name)}`, line, (n + 2) * line, one.colour));
  pen.drawImage(plot, 0, (lines.length + 1.5) * line);
  return canvas;
}
