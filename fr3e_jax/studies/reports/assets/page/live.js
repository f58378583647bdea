// A page that `fr3e report --serve` serves: it asks its own server for newer steps, and shows them where they belong.

const ASK_EVERY = 5000; // milliseconds
const PATIENCE = 10; // an answer that took a second is asked for again after so many
const DATA = 'script[type="text/plain"]';
let servedVersion = null;

async function askForNews() {
  let wait = ASK_EVERY;
  try {
    const {shown, newest} = await (await fetch('version', {cache: 'no-store'})).json();
    servedVersion ??= shown;
    if (newest !== servedVersion && !document.querySelector(':popover-open')) {
      const asked = performance.now();
      const newer = await (await fetch('./', {cache: 'no-store'})).text();
      await takeOver(new DOMParser().parseFromString(newer, 'text/html'));
      servedVersion = newest;
      wait = Math.max(ASK_EVERY, PATIENCE * (performance.now() - asked));
    }
  } catch {
    /* the server has stopped; the page stays as it is */
  }
  setTimeout(askForNews, wait);
}

// Show the data of a newer page. The state of every view, the place on the page and the focus stay.
async function takeOver(newer) {
  document.querySelectorAll(DATA).forEach((node) => node.remove());
  document.body.append(...newer.querySelectorAll(DATA));
  const states = Object.entries(views).map(([name, view]) => [name, new Map(view.state())]);
  const lists = [...document.querySelectorAll('.list ol')].map((list) => list.scrollTop);
  const focused = document.activeElement;
  const label = focused.ariaLabel;
  const caret = focused.type === 'search' ? focused.selectionStart : null;
  const [top, shown] = [scrollY, shownView];
  page = await unpack('main');
  unpacked.clear();
  document.getElementById('page').replaceWith(newer.getElementById('page'));
  build();
  shownView = null;
  await follow();
  for (const [name, state] of states) if (name !== shown) await views[name].restore(state);
  document.querySelectorAll('.list ol').forEach((list, n) => (list.scrollTop = lists[n] ?? 0));
  scrollTo(0, top);
  const again =
    label && [...views[shown].node.querySelectorAll('[aria-label]')].find((node) => node.ariaLabel === label);
  again?.focus({preventScroll: true});
  if (again && caret !== null) again.setSelectionRange(caret, caret);
  document.getElementById('fresh').textContent = `newer steps, ${new Date().toLocaleTimeString()}`;
}

setTimeout(askForNews, ASK_EVERY);
