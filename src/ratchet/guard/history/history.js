"use strict";
// The history page: the search hides the series that do not fit, and a link opens its series.
const tiles = [...document.querySelectorAll(".multiple")];
const search = document.getElementById("search"), changed = document.getElementById("changed");
function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const tile of tiles) {
    const name = tile.dataset.key.toLowerCase();
    tile.hidden = !words.every(word => name.includes(word)) || (changed.checked && tile.classList.contains("quiet"));
    shown += !tile.hidden;
  }
  document.getElementById("count").textContent = shown + " of " + tiles.length;
}
function reveal() {
  const tile = document.getElementById(location.hash.slice(1))?.closest(".multiple");
  if (!tile) return;
  tile.hidden = false; tile.open = true;
  tile.scrollIntoView();
}
search.addEventListener("input", filter);
changed.addEventListener("change", filter);
addEventListener("hashchange", reveal);
filter();
reveal();
