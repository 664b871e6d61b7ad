// Light or dark: as the system, until the user chooses.

const root = document.documentElement;
const button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
const other = () => ((root.dataset.theme ?? system) === "dark" ? "light" : "dark");

function choose(theme) {
  if (theme) root.dataset.theme = theme;
  button.textContent = other() === "dark" ? "Dark" : "Light";
}

choose(localStorage.getItem("theme"));
button.addEventListener("click", () => {
  choose(other());
  localStorage.setItem("theme", root.dataset.theme);
});
