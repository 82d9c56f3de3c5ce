"use strict";
// Tables that sort and filter. Without this script every row is there, in the order of the report.
for (const box of document.querySelectorAll("[data-table]")) {
  const table = box.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const texts = rows.map((row) =>
    [...row.cells].map((cell) => `${cell.textContent} ${cell.title}`).join(" ").toLowerCase());
  const heads = [...table.tHead.rows[0].cells];
  const summed = heads.findIndex((head) => head.dataset.sum !== undefined);
  const tools = document.createElement("p");
  tools.className = "tools";
  const filter = document.createElement("input");
  filter.type = "search";
  filter.placeholder = "filter";
  filter.setAttribute("aria-label", `Filter ${box.dataset.table}`);
  const said = document.createElement("output");
  tools.append(filter, said);
  box.prepend(tools);

  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    let sum = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word));
      if (row.hidden) return;
      count += 1;
      if (summed >= 0) sum += Number(row.cells[summed].dataset.v);
    });
    const of = count === rows.length ? "" : ` of ${rows.length}`;
    const time = sum / 1e6;
    const shown = time.toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
    said.textContent = `${count}${of} rows` + (summed >= 0 ? `, ${shown} ms` : "");
  };

  heads.forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const number = head.classList.contains("n");
      const was = head.getAttribute("aria-sort");
      const first = number ? "descending" : "ascending";
      const turned = was === "ascending" ? "descending" : "ascending";
      const next = was === null ? first : turned;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const value = (row) => number ? Number(row.cells[index].dataset.v) : row.cells[index].textContent;
      const compare = (a, b) => number ? value(a) - value(b)
        : value(a).localeCompare(value(b), "en", { numeric: true });
      rows.map((row, place) => [row, place])
        .sort((a, b) => sign * compare(a[0], b[0]) || a[1] - b[1])
        .forEach(([row]) => body.append(row));
    });
  });
  filter.addEventListener("input", show);
  show();
}
