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

// A button that saves numbers, columns as [name, values].
function saveButton(title, columns) {
  const save = () => saveFile(`${title}.csv`, [csv(columns)], 'text/csv');
  return button('csv', save, {'aria-label': `${visible(title)}: save as CSV`});
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
