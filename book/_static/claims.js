/* Menus above the scorecard's table of claims, whose choice is kept in the page's address. */
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector(".score.claims table");
  if (!table) return;
  const rows = [...table.querySelectorAll("tr[data-study]")];
  const filters = ["study", "verdict", "release", "machine"];
  const orders = {
    "": ["as published", () => 0],
    verdict: ["by verdict", (row) => Number(row.dataset.rank)],
    ratio: ["by ratio", (row) => Number(row.dataset.ratio || Infinity)],
  };
  const asked = new URLSearchParams(location.search);
  const line = document.createElement("p");
  line.className = "menus";
  const menus = {};
  const offer = (name, choices) => {
    const menu = document.createElement("select");
    for (const [value, text] of choices) menu.append(new Option(text, value));
    menu.value = choices.some(([value]) => value === asked.get(name)) ? asked.get(name) : "";
    menu.addEventListener("change", show);
    menu.setAttribute("aria-label", name);
    const words = document.createElement("span");
    words.append(`${name} `, menu);
    line.append(words);
    menus[name] = menu;
  };
  const count = document.createElement("output");
  // Each group is its heading, claims and notes, in the order of the page.
  const groups = [...table.querySelectorAll("tr.group")].map((head) => {
    const members = [];
    for (let row = head.nextElementSibling; row && !row.matches(".group"); row = row.nextElementSibling) members.push(row);
    return { head, members };
  });

  function show() {
    const chosen = filters.filter((name) => menus[name]?.value);
    const order = menus.order.value;
    for (const row of rows) row.hidden = chosen.some((name) => row.dataset[name] !== menus[name].value);
    for (const { head, members } of groups) {
      const claims = members.filter((row) => row.dataset.study);
      head.hidden = claims.every((row) => row.hidden);
      // Notes stand between claims in the order of the post alone.
      for (const row of members) if (!row.dataset.study) row.hidden = head.hidden || order !== "" || chosen.length > 0;
      const place = orders[order][1];
      const sorted = order ? [...claims].sort((one, other) => place(one) - place(other)) : members;
      head.after(...sorted);
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} claims`;
    const kept = new URLSearchParams(Object.entries(menus).map(([name, menu]) => [name, menu.value]).filter(([, value]) => value));
    history.replaceState(null, "", `${kept.size ? `?${kept}` : location.pathname}${location.hash}`);
  }

  for (const name of filters) {
    const first = new Map();
    for (const { dataset } of rows) if (dataset[name] && !first.has(dataset[name])) first.set(dataset[name], dataset);
    const choices = [...first];
    if (name === "verdict") choices.sort(([, one], [, other]) => one.rank - other.rank);
    const text = (value, data) => (name === "study" ? data.title : value);
    if (choices.length > 1) offer(name, [["", "all"], ...choices.map(([value, data]) => [value, text(value, data)])]);
  }
  offer("order", Object.entries(orders).map(([value, [text]]) => [value, text]));
  line.append(count);
  table.closest(".table-box").before(line);
  if (asked.size) line.closest("details")?.setAttribute("open", "");  // a section on a phone
  show();
});
