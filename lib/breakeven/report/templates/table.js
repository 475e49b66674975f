"use strict";
// Tables sort by a click on a heading, and long ones filter as one types. Without scripts they are plain tables.
for (const table of document.querySelectorAll("table.data")) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  if (rows.length < 3) continue;
  const heads = Array.from(table.tHead.rows[0].cells);
  const number = (text) => (/^[+-]?[0-9]/.test(text) ? parseFloat(text) : NaN);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const key = (row) => row.cells[column].textContent.trim();
      rows.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        const [m, n] = [number(x), number(y)];
        if (isNaN(m) !== isNaN(n)) return isNaN(m) ? 1 : -1; // what has no figure stays last
        const order = isNaN(m) ? x.localeCompare(y) : m - n;
        return falling ? -order : order;
      });
      body.append(...rows);
    });
  });
  if (rows.length < 13) continue;
  const label = document.createElement("label");
  label.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  const count = document.createElement("span");
  count.setAttribute("role", "status");
  label.append("Filter ", input, " ", count);
  const show = () => {
    const wanted = input.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  };
  input.addEventListener("input", show);
  show();
  (table.closest(".scroll") ?? table).before(label);
}
