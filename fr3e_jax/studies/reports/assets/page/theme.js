// The colours of day and night: the reader's choice, else that of the system. Paper is light.

const systemIsDark = matchMedia('(prefers-color-scheme: dark)');
const onPaper = matchMedia('print');
let chosenTheme = null;
try {
  chosenTheme = localStorage.getItem('fr3e-theme');
} catch {
  /* a page from disk may have no storage; the choice holds until it closes */
}

function showTheme() {
  const isDark = !onPaper.matches && (chosenTheme ?? (systemIsDark.matches ? 'dark' : 'light')) === 'dark';
  document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
  document.dispatchEvent(new Event('theme'));
}

function switchTheme() {
  chosenTheme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  showTheme();
  localStorage?.setItem('fr3e-theme', chosenTheme);
}

systemIsDark.addEventListener('change', showTheme);
onPaper.addEventListener('change', showTheme);
