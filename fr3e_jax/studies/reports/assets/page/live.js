// A page that `fr3e report --serve` serves: it asks its own server whether there is a newer one.

const ASK_EVERY = 5000; // milliseconds
let servedVersion = null;

async function askForNews() {
  try {
    const {version, step} = await (await fetch('version', {cache: 'no-store'})).json();
    servedVersion ??= version;
    if (version !== servedVersion) {
      replace(
        document.getElementById('fresh'),
        button(`step ${step} is there: show it`, () => location.reload(), {class: 'fresh'}),
      );
      return;
    }
  } catch {
    /* the server has stopped; the page stays as it is */
  }
  setTimeout(askForNews, ASK_EVERY);
}

setTimeout(askForNews, ASK_EVERY);
