"use strict";
// The history page: a click shows a series in the large plot; the search hides the others.
const all = JSON.parse(document.getElementById("data").textContent);
const tiles = [...document.querySelectorAll(".multiple")];
function show(key, scroll) {
  const one = all[key], page = Bokeh.documents[0];
  if (!one || !page) return;
  document.getElementById("detail-title").textContent = key + (one.unit ? " [" + one.unit + "]" : "");
  for (const name of ["points", "levels", "changes"]) page.get_model_by_name(name).data = one[name];
  page.get_model_by_name("history").reset.emit();
  if (scroll) document.getElementById("detail").scrollIntoView({behavior: "smooth"});
}
document.addEventListener("click", event => {
  const hit = event.target.closest("[data-key]");
  if (hit) show(hit.dataset.key, true);
});
function filter() {
  const words = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const changed = document.getElementById("changed").checked;
  let shown = 0;
  for (const tile of tiles) {
    const name = tile.dataset.key.toLowerCase();
    const fits = words.every(word => name.includes(word)) && !(changed && tile.classList.contains("quiet"));
    tile.hidden = !fits; shown += fits;
  }
  document.getElementById("count").textContent = shown + " of " + tiles.length;
}
document.getElementById("search").addEventListener("input", filter);
document.getElementById("changed").addEventListener("change", filter);
filter();
const wait = setInterval(() => {
  if (window.Bokeh && Bokeh.documents.length && tiles.length) { clearInterval(wait); show(tiles[0].dataset.key, false); }
}, 50);
