// Elements, numbers and texts. Every text reaches the page through textContent, never as markup.

const SVG = 'http://www.w3.org/2000/svg';

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

function replace(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function button(label, action, attributes = {}) {
  return element('button', {type: 'button', onclick: action, ...attributes}, label);
}

// A drop-down list of [value, label] pairs.
function choice(label, options, value, changed, attributes = {}) {
  const list = element(
    'select',
    {'aria-label': label, ...attributes},
    options.map(([name, text]) => element('option', {value: name}, text)),
  );
  list.value = value;
  list.addEventListener('change', () => changed(list.value));
  return list;
}

// Characters that act on a terminal, on the direction of writing or on nothing visible, as
// fr3e_jax/visible_text.py has them, and zero-width spaces. They are shown by their numbers.
const ACTIVE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/gu;

function visible(text) {
  return text.replace(ACTIVE, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`);
}

// A token in one line: white space is seen.
function spelled(text) {
  return visible(text).replace(/\n/g, '↵').replace(/\t/g, '⇥').replace(/ /g, '·');
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return '–';
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value)) return value.toLocaleString('en', {maximumFractionDigits: 0});
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

function signed(value, digits = 2) {
  return value === null ? '–' : (value < 0 ? '−' : '+') + Math.abs(value).toFixed(digits);
}

function fixed(value, digits = 2) {
  return value === null || value === undefined ? '–' : (value < 0 ? '−' : '') + Math.abs(value).toFixed(digits);
}

function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString('en')} ${count === 1 ? one : many}`;
}

function outOf(shown, all, one) {
  return shown === all ? plural(all, one) : `${shown.toLocaleString('en')} of ${plural(all, one)}`;
}

function shortened(text, length) {
  const seen = [...visible(String(text))];
  return seen.length > length ? `${seen.slice(0, length - 1).join('')}…` : seen.join('');
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function tip(event, text) {
  const box = document.getElementById('tip');
  box.textContent = text;
  box.hidden = false;
  const {width, height} = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  box.style.top = `${event.clientY + height + 26 > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
}

function hideTip() {
  document.getElementById('tip').hidden = true;
}

// Show the text of what the pointer is over, if `textAt` has one.
function showTips(node, textAt) {
  node.addEventListener('pointermove', (event) => {
    const text = textAt(event.target);
    if (text) tip(event, text);
    else hideTip();
  });
  node.addEventListener('pointerleave', hideTip);
  return node;
}

// A table of rows of cells: texts, elements within cells, or cells themselves.
function tableElement(head, rows) {
  const cell = (content, name) => (/^T[DH]$/.test(content.nodeName) ? content : element(name, {}, content));
  const line = (cells, name) => element('tr', {}, cells.map((content) => cell(content, name)));
  return element(
    'table',
    {},
    head && element('thead', {}, line(head, 'th')),
    element('tbody', {}, rows.map((cells) => line(cells, 'td'))),
  );
}

function noteElement(...children) {
  return element('p', {class: 'note'}, ...children);
}

function rowElement(...children) {
  return element('div', {class: 'row'}, ...children);
}
