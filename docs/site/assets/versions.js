// Fills the list of versions from switcher.json. A page opened as a file has only its own version.
document.addEventListener("DOMContentLoaded", async () => {
  const menu = document.querySelector("details.versions");
  if (!menu || location.protocol === "file:") return;
  const root = new URL(menu.dataset.root, location.href);
  const answer = await fetch(new URL(menu.dataset.list, location.href));
  if (!answer.ok) throw new Error(`${answer.url}: ${answer.status}`);
  const current = menu.querySelector("[aria-current]").textContent;
  const items = (await answer.json()).map(({ name, version, url }) => {
    const link = document.createElement("a");
    link.textContent = name;
    link.href = new URL(url, root);
    if (version === current) link.setAttribute("aria-current", "true");
    const item = document.createElement("li");
    item.append(link);
    return item;
  });
  menu.querySelector("ul").replaceChildren(...items);
});
document.addEventListener("click", (event) => {
  const menu = document.querySelector("details.versions[open]");
  if (menu && !menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  const menu = document.querySelector("details.versions[open]");
  if (menu && event.key === "Escape") {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});
