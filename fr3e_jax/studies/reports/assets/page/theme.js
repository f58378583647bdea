// The colours of day and night: the reader's choice, else that of the system.

function savedTheme() {
  try {
    return localStorage.getItem('fr3e-theme');
  } catch {
    return null; // a page from disk may have no storage
  }
}

function theme(chosen) {
  const dark = chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  document.dispatchEvent(new Event('theme'));
}

function switchTheme() {
  const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try {
    localStorage.setItem('fr3e-theme', next);
  } catch {
    /* the choice holds for this page only */
  }
  theme(next);
}

function themeButton() {
  return button('light / dark', switchTheme, {id: 'theme'});
}

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => theme(savedTheme()));
