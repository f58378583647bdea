// A list to choose from: search, filters, order, and one stop of the tab key, in which arrows move.
//
// list_items.py says what an item has.

const BOUND = /\b(step|reward|length)\s*(<=|>=|<|>|=)\s*(-?[\d.]+)/g;
const EXCEEDS = {
  '<': ([least], value) => least < value,
  '<=': ([least], value) => least <= value,
  '>': ([, most], value) => most > value,
  '>=': ([, most], value) => most >= value,
  '=': ([least, most], value) => least <= value && value <= most,
};

// `spec` has label, items, filters and orders ([name, label] pairs, the first is the usual one), open(item).
function makeList(node, spec) {
  const list = {node, search: element('input', {type: 'search', 'aria-label': 'search'}), ...spec};
  const isBounded = list.items.some(({bounds}) => bounds.step);
  list.search.placeholder = isBounded ? 'words, reward<0.5, step=3  ( / )' : 'words  ( / )';
  const words = 'words of question, gold answer and responses';
  list.search.title = isBounded ? `${words}; also step=3, reward<0.5, length>100` : words;
  const changed = () => {
    showList(list);
    remember();
  };
  const counted = list.filters.map(([name, label]) => [name, `${label} (${passing(list, name).length})`]);
  list.search.addEventListener('input', changed);
  list.filter = choice(element('select', {'aria-label': 'filter'}), counted, list.filters[0][0], changed);
  list.order = choice(element('select', {'aria-label': 'order'}), list.orders, list.orders[0][0], changed);
  list.entries = element('ol', {'aria-label': list.label, onkeydown: moveFocus});
  list.count = element('small', {class: 'muted'});
  replace(node, list.search, rowElement(list.filter, list.order), list.count, list.entries);
  showList(list);
  return list;
}

// The fields of a list by their names in the address, with their usual values.
function listFields(list) {
  return [
    ['filter', list.filter, list.filters[0][0]],
    ['order', list.order, list.orders[0][0]],
    ['search', list.search, ''],
  ];
}

function listState(list) {
  return listFields(list).map(([name, field, usual]) => [name, field.value === usual ? null : field.value]);
}

function restoreList(list, state) {
  for (const [name, field, usual] of listFields(list)) {
    field.value = state.get(name) ?? usual;
    if (!field.value) field.value = usual;
  }
  showList(list);
}

function passing(list, filter) {
  return list.items.filter(({tags}) => filter === list.filters[0][0] || tags.includes(filter));
}

function showList(list) {
  const search = list.search.value;
  const bounds = [...search.matchAll(BOUND)];
  const words = search.replace(BOUND, '').trim().toLowerCase();
  const isWithin = (item) =>
    bounds.every(([, name, sign, value]) => item.bounds[name] && EXCEEDS[sign](item.bounds[name], Number(value)));
  const says = (text) => text?.toLowerCase().includes(words);
  const isSaid = ({question, problem, gold, text}) => !words || [question, problem, gold, text].some(says);
  const place = (item) => item.order[list.order.value] ?? 0;
  list.shown = passing(list, list.filter.value).filter((item) => isWithin(item) && isSaid(item));
  list.shown.sort((a, b) => place(a) - place(b));
  replace(list.entries, list.shown.map((item) => entryOf(list, item)));
  const isUnread = words && list.items.some((item) => item.text === undefined && item.chunk !== null);
  const counts = [list.shown.length, list.items.length].map((count) => count.toLocaleString('en'));
  list.count.textContent = `${counts.join(' of ')}${isUnread ? '; reading the responses …' : ''}`;
  markChosen(list);
  if (isUnread) readResponses(list, search);
}

// The texts of all responses, for the search. A newer search takes over.
async function readResponses(list, search) {
  const isOver = () => list.search.value !== search;
  for (const item of list.items) {
    if (isOver()) return;
    if (item.text === undefined && item.chunk !== null)
      item.text = texts((await unpack(item.chunk)).token_ids).join('');
  }
  if (!isOver()) showList(list);
}

function entryOf(list, item) {
  const title = visible(item.title || item.question || item.problem).replaceAll('\n', '↵');
  const question = element('span', {class: 'text question'}, title);
  const iconFor = (solved) => (solved === null ? '–' : iconElement(page.outcomes[solved ? 'right' : 'wrong']));
  const facts = item.facts.map((fact) => element('span', {}, visible(fact)));
  const small = element('small', {}, item.icons?.map(iconFor), item.share && shareBar(item.share), facts);
  const entry = button([question, small], () => list.open(item), {tabindex: -1});
  entry.item = item;
  return element('li', {}, entry);
}

// Right blue, wrong orange, without a verdict grey.
function shareBar([right, verdicts, all]) {
  const bar = element('span', {class: 'share', title: verdicts ? `${right} of ${all} right` : `no verdict on ${all}`});
  bar.style.setProperty('--right-end', `${(100 * right) / (all || 1)}%`);
  bar.style.setProperty('--wrong-end', `${(100 * verdicts) / (all || 1)}%`);
  return bar;
}

function markChosen(list) {
  const entries = [...list.entries.querySelectorAll('button')];
  const chosen = entries.find((entry) => entry.item === list.chosen);
  for (const entry of entries) {
    entry.setAttribute('aria-current', String(entry === chosen));
    entry.tabIndex = entry === (chosen ?? entries[0]) ? 0 : -1;
  }
  if (!chosen) return;
  const [box, place] = [list.entries, chosen].map((node) => node.getBoundingClientRect());
  const isInSight = box.top <= place.top && place.bottom <= box.bottom;
  if (!isInSight) list.entries.scrollTop += place.top - box.top - box.height / 2;
}

// Arrows, Home and End move the focus within a group of buttons that is one stop of the tab key: up and down in a list,
// right and left in a row.
function moveFocus(event) {
  const buttons = [...event.currentTarget.querySelectorAll('button')];
  const at = buttons.indexOf(event.target);
  const [after, before] = event.currentTarget.tagName === 'OL' ? ['ArrowDown', 'ArrowUp'] : ['ArrowRight', 'ArrowLeft'];
  const next = buttons[{[after]: at + 1, [before]: at - 1, Home: 0, End: buttons.length - 1}[event.key]];
  if (!next) return;
  event.preventDefault();
  event.stopPropagation();
  for (const other of buttons) other.tabIndex = other === next ? 0 : -1;
  next.focus();
}

function neighbour(list, way) {
  const next = list.shown[list.shown.indexOf(list.chosen) + way];
  if (next) list.open(next);
}
