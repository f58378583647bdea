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
    if (newest !== servedVersion && !document.querySelector('dialog[open]')) {
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
  page = await unpack('main');
  unpacked.clear();
  const states = Object.entries(views).map(([name, {node}]) => [name, node.state?.() ?? []]);
  const lists = [...document.querySelectorAll('.list ol')].map((list) => list.scrollTop);
  const [top, focused] = [scrollY, document.activeElement];
  const label = focused?.getAttribute('aria-label');
  const caret = focused?.type === 'search' ? focused.selectionStart : null;
  const shown = shownView;
  build();
  shownView = null;
  await follow();
  for (const [name, state] of states) {
    const kept = state.filter(([, value]) => value !== null && value !== undefined);
    if (name !== shown && kept.length) await views[name].node.restore(new Map(kept));
  }
  [...document.querySelectorAll('.list ol')].forEach((list, n) => (list.scrollTop = lists[n] ?? 0));
  scrollTo(0, top);
  const again = label && [...views[shown].node.querySelectorAll('[aria-label]')].find((node) => node.ariaLabel === label);
  again?.focus({preventScroll: true});
  if (again && caret !== null) again.setSelectionRange(caret, caret);
  replace(document.getElementById('fresh'), `newer steps, ${new Date().toLocaleTimeString()}`);
}

setTimeout(askForNews, ASK_EVERY);
