// A list to choose from: search, filters, order, and one stop of the tab key, in which arrows move.

const LIST_LIMIT = 3000;
const BOUND = /\b(step|reward|length)\s*(<=|>=|<|>|=)\s*(-?[\d.]+)/g;
const EXCEEDS = {
  '<': ([least], value) => least < value,
  '<=': ([least], value) => least <= value,
  '>': ([, most], value) => most > value,
  '>=': ([, most], value) => most >= value,
  '=': ([least, most], value) => least <= value && value <= most,
};

// `spec` has label, items, filters and orders ([name, label, function]), placeholder, ranges(item) ({name: [least,
// most]}), facts(item) (text that the search reads), chunk(item) (of its rollouts, or null), entry(item), open(item).
function makeList(spec) {
  const list = {filter: 'all', order: spec.orders[0][0], search: '', shown: [], chosen: null, ...spec};
  const choose = (name, options) =>
    choice(name, options, list[name], (value) => {
      list[name] = value;
      showList(list);
      remember();
    });
  list.entries = element('ol', {'aria-label': spec.label, onkeydown: moveFocus});
  list.count = element('small', {class: 'muted'});
  list.fields = {
    search: element('input', {
      type: 'search',
      placeholder: spec.placeholder,
      title: 'words of question, gold answer and responses; also step=3, reward<0.5, length>100',
      'aria-label': 'search',
      oninput: (event) => {
        list.search = event.target.value;
        showList(list);
        remember();
      },
    }),
    filter: choose(
      'filter',
      spec.filters.map(([name, label, test]) => [name, `${label} (${list.items.filter(test).length})`]),
    ),
    order: choose('order', spec.orders),
  };
  const {search, filter, order} = list.fields;
  list.node = element('div', {class: 'list panel'}, search, rowElement(filter, order), list.count, list.entries);
  return list;
}

// What the address says of a list, and a list as an address says.
function listState(list) {
  return ['filter', 'order', 'search'].map((name) => [name, list[name] === listDefault(list, name) ? null : list[name]]);
}

function restoreList(list, state) {
  for (const name of ['filter', 'order', 'search']) {
    const value = state.get(name) ?? listDefault(list, name);
    const known = name === 'search' || list[`${name}s`].some(([option]) => option === value);
    list[name] = list.fields[name].value = known ? value : listDefault(list, name);
  }
  showList(list);
}

function listDefault(list, name) {
  return {filter: 'all', order: list.orders[0][0], search: ''}[name];
}

function showList(list) {
  const test = list.filters.find(([name]) => name === list.filter)[2];
  const bounds = [...list.search.matchAll(BOUND)].map(([, name, sign, value]) => [name, sign, Number(value)]);
  const words = list.search.replace(BOUND, '').trim().toLowerCase();
  const holds = (item, [name, sign, value]) => {
    const range = list.ranges(item)[name];
    return Boolean(range) && EXCEEDS[sign](range, value);
  };
  const says = (item) => !words || list.facts(item).toLowerCase().includes(words) || item.text?.includes(words);
  list.shown = list.items.filter((item) => test(item) && bounds.every((bound) => holds(item, bound)) && says(item));
  list.shown.sort(list.orders.find(([name]) => name === list.order)[2]);
  replace(list.entries, list.shown.slice(0, LIST_LIMIT).map((item) => entryOf(list, item)));
  const unread = words ? list.items.filter((item) => item.text === undefined && list.chunk(item) !== null).length : 0;
  const more = list.shown.length > LIST_LIMIT ? `; the first ${LIST_LIMIT} are listed` : '';
  list.count.textContent = `${list.shown.length.toLocaleString('en')} of ${list.items.length.toLocaleString('en')}${more}`;
  if (unread) list.count.append('; reading the responses …');
  markChosen(list);
  if (unread) readResponses(list);
}

// The texts of all responses, for the search. A newer search takes over, and so does a newer page.
async function readResponses(list) {
  const {search} = list;
  const over = () => list.search !== search || !list.entries.isConnected;
  for (const item of list.items) {
    if (over()) return;
    if (item.text === undefined && list.chunk(item) !== null)
      item.text = texts((await unpack(list.chunk(item))).token_ids).join('').toLowerCase();
  }
  if (!over()) showList(list);
}

function entryOf(list, item) {
  const entry = button(list.entry(item), () => list.open(item), {tabindex: -1});
  entry.item = item;
  return element('li', {}, entry);
}

function markChosen(list) {
  const entries = [...list.entries.querySelectorAll('button')];
  const chosen = entries.find((entry) => entry.item === list.chosen);
  for (const entry of entries) {
    entry.setAttribute('aria-current', String(entry === chosen));
    entry.tabIndex = entry === (chosen ?? entries[0]) ? 0 : -1;
  }
  if (!chosen) return;
  const box = list.entries.getBoundingClientRect(),
    place = chosen.getBoundingClientRect();
  if (place.top < box.top || place.bottom > box.bottom)
    list.entries.scrollTop += place.top - box.top - box.height / 2;
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

// Right blue, wrong orange, without a verdict grey.
function shareBar(right, verdicts, all, title) {
  const part = (tone, count) => {
    const bar = element('i', {class: tone});
    bar.style.width = `${(100 * count) / all}%`;
    return bar;
  };
  return element('span', {class: 'share', title}, part('right', right), part('wrong', verdicts - right));
}
