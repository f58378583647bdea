// What a reader takes out of a page: files that the browser makes itself, and copies.

function saveFile(name, parts, type) {
  const address = URL.createObjectURL(new Blob(parts, {type}));
  element('a', {href: address, download: name.replace(/[^\w.@-]+/g, '_')}).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// A button that copies a text.
function copyButton(label, text) {
  return button(label, ({target}) => {
    const say = (words) => () => replace(target, words);
    const written = navigator.clipboard?.writeText(text()) ?? Promise.reject(new Error('no clipboard'));
    written.then(say('copied'), say('the browser does not allow it'));
  });
}

// Buttons that save numbers, columns as [name, values], and the picture of a plot or heat map with title and legend.
function saveButtons(title, columns, lines = null) {
  const label = (kind) => ({'aria-label': `${visible(title)}: save as ${kind}`});
  const asNumbers = () => saveFile(`${title}.csv`, [csv(columns)], 'text/csv');
  const asPicture = ({target}) => {
    const panel = target.closest('.panel');
    const drawn = panel.querySelector('canvas') ?? cellsCanvas(panel.querySelector('table'));
    picture(title, drawn, lines).toBlob((content) => saveFile(`${title}.png`, [content], 'image/png'));
  };
  return [button('csv', asNumbers, label('CSV')), lines && button('png', asPicture, label('PNG'))];
}

// Numbers and quoted texts; a text that a spreadsheet would read as a formula gets an apostrophe.
function csv(columns) {
  const quoted = (text) =>
    `"${visible(String(text))
      .replace(/^[=+\-@]/, "'$&")
      .replaceAll('"', '""')}"`;
  const cell = (value) => ((value ?? null) === null ? '' : typeof value === 'number' ? String(value) : quoted(value));
  const rows = columns[0][1].map((_, i) => columns.map(([, values]) => cell(values[i])).join(','));
  return [columns.map(([name]) => quoted(name)).join(','), ...rows, ''].join('\n');
}

function picture(title, plot, lines) {
  const scale = devicePixelRatio;
  const line = 18 * scale;
  const canvas = element('canvas', {width: plot.width, height: plot.height + (lines.length + 2) * line});
  const pen = canvas.getContext('2d');
  const write = (text, row, tone, weight = '') => {
    pen.fillStyle = tone;
    pen.font = `${weight} ${13 * scale}px system-ui, sans-serif`;
    pen.fillText(text, line, (row + 1) * line);
  };
  pen.fillStyle = colour('panel');
  pen.fillRect(0, 0, canvas.width, canvas.height);
  write(visible(title), 0, colour('ink'), 'bold');
  lines.forEach((series, n) => write(`■ ${visible(series.name)}`, n + 1, series.colour));
  pen.drawImage(plot, 0, (lines.length + 1.5) * line);
  return canvas;
}

// The cells of a table by their colours, with the names of its rows and columns.
function cellsCanvas(table) {
  const rows = [...table.rows].map(({cells}) => [...cells]);
  const left = 16 + 7 * Math.max(...rows.map(([{textContent}]) => textContent.length));
  const width = Math.max(6, 600 / rows[0].length);
  const [across, down] = [left + width * rows[0].length, 18 * rows.length].map((size) => size * devicePixelRatio);
  const canvas = element('canvas', {width: across, height: down});
  const pen = canvas.getContext('2d');
  pen.scale(devicePixelRatio, devicePixelRatio);
  pen.font = FONT;
  for (const [r, cells] of rows.entries()) {
    for (const [c, cell] of cells.entries()) {
      const x = c ? left + (c - 1) * width : 8;
      pen.fillStyle = getComputedStyle(cell).backgroundColor;
      pen.fillRect(x, 18 * r, width, 17);
      pen.fillStyle = colour('ink');
      pen.fillText(cell.textContent, x, 18 * r + 13);
    }
  }
  return canvas;
}
