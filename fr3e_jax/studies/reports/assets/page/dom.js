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
  return replace(node, ...children);
}

// Children may be nested; null, undefined and false are none.
function replace(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => (child ?? false) !== false));
  return node;
}

function button(label, action, attributes = {}) {
  return element('button', {type: 'button', onclick: action, ...attributes}, label);
}

// Fill a drop-down list with [value, label] pairs.
function choice(list, options, value, changed) {
  list.replaceChildren(...options.map(([name, text]) => new Option(visible(String(text)), name)));
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
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e12) return value.toLocaleString('en');
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

function fixed(value, digits = 2, plus = '') {
  return (value ?? null) === null ? '–' : (value < 0 ? '−' : plus) + Math.abs(value).toFixed(digits);
}

function plural(count, noun) {
  return `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;
}

function shortened(text, length) {
  const seen = [...visible(String(text))];
  return seen.length > length ? `${seen.slice(0, length - 1).join('')}…` : seen.join('');
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Show the text of what the pointer is over, if `textAt` has one.
function showTips(node, textAt) {
  const box = document.getElementById('tip');
  node.addEventListener('pointermove', (event) => {
    const text = textAt(event.target);
    box.hidden = !text;
    if (!text) return;
    box.textContent = text;
    box.style.left = `min(${event.clientX + 14}px, 100vw - ${box.offsetWidth + 8}px)`;
    box.style.top = `min(${event.clientY + 18}px, 100vh - ${box.offsetHeight + 8}px)`;
  });
  node.addEventListener('pointerleave', () => (box.hidden = true));
  return node;
}

// A table of rows of cells: texts, or cells themselves.
function tableElement(head, rows) {
  const cell = (content, name) => (/^T[DH]$/.test(content.nodeName) ? content : element(name, {}, content));
  const line = (cells, name) => element('tr', {}, ...cells.map((content) => cell(content, name)));
  const body = rows.map((row) => line(row, 'td'));
  return element('table', {}, element('thead', {}, line(head, 'th')), element('tbody', {}, body));
}

// A list of terms with their values, texts or elements; a pair may be false.
function details(label, pairs) {
  const pair = ([name, value]) =>
    element('div', {}, element('dt', {}, name), element('dd', {'data-fact': name}, value));
  return element('dl', {class: 'details', 'aria-label': label}, pairs.filter(Boolean).map(pair));
}

function noteElement(...children) {
  return element('p', {class: 'note'}, ...children);
}

function rowElement(...children) {
  return element('div', {class: 'row'}, ...children);
}
