// The colours of day and night: the reader's choice while the page is open, else that of the system.

const systemIsDark = matchMedia('(prefers-color-scheme: dark)');
let chosenTheme = null;

function showTheme() {
  const isDark = (chosenTheme ?? (systemIsDark.matches ? 'dark' : 'light')) === 'dark';
  document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
  document.dispatchEvent(new Event('theme'));
}

function switchTheme() {
  chosenTheme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  showTheme();
}

systemIsDark.addEventListener('change', showTheme);
