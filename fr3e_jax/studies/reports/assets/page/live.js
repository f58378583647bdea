// A page that `fr3e report --serve` serves: it asks its own server whether there is a newer one.

const ASK_EVERY = 5000; // milliseconds
let servedVersion = null;

async function askForNews() {
  try {
    const {shown, newest} = await (await fetch('version', {cache: 'no-store'})).json();
    servedVersion ??= shown;
    if (newest !== servedVersion) {
      const show = button('newer steps are there: show them', () => location.reload(), {class: 'fresh'});
      replace(document.getElementById('fresh'), show);
      return;
    }
  } catch {
    /* the server has stopped; the page stays as it is */
  }
  setTimeout(askForNews, ASK_EVERY);
}

setTimeout(askForNews, ASK_EVERY);
