// A page that `fr3e report --serve` serves: it asks its own server for newer steps, and loads itself to show them. The
// address holds what is shown; the theme and the place on the page wait in the session.

const [{responseStart}] = performance.getEntriesByType('navigation');
const ASK_EVERY = Math.max(5000, 10 * responseStart); // milliseconds; a page that takes long to make is seldom made
const left = JSON.parse(sessionStorage.left ?? '{}');
let served = null;

async function askForNews() {
  try {
    const {shown, newest} = await (await fetch('version', {cache: 'no-store'})).json();
    const isInUse = document.activeElement?.matches('input') || document.querySelector(':popover-open');
    if (served === null) served = shown;
    // What the server could not show after a first request is not asked for again.
    else if (![served, left.newest].includes(newest) && !isInUse) {
      sessionStorage.left = JSON.stringify({newest, theme: chosenTheme, top: scrollY});
      location.reload();
    }
  } catch {
    /* the server has stopped; the page stays as it is */
  }
  setTimeout(askForNews, ASK_EVERY);
}

sessionStorage.removeItem('left');
chosenTheme = left.theme ?? null;
const comeBack = new MutationObserver(() => left.top && scrollTo(0, left.top));
comeBack.observe(document.documentElement, {attributeFilter: ['data-ready']});
askForNews();
