"use strict";
// The sliders of a plan: each part of a step is scaled, and the table is written again.
const held = JSON.parse(document.getElementById("plan-data").textContent);
const inputs = ["compute", "fabric", "network", "price", "tokens"].map((id) => document.getElementById(`x-${id}`));
const rows = document.getElementById("plan-rows");

const stepOf = (parts, x) => {
  const device = (parts.compute + parts.recompute + parts.optimizer) / x.compute;
  const inside = (parts.tensor + parts.context + parts.experts) / x.fabric;
  const before = parts.compute + parts.recompute + parts.tensor + parts.context + parts.experts;
  const after = (parts.compute + parts.recompute) / x.compute + inside;
  const bubble = before ? parts.bubble * after / before : 0;
  return device + inside + bubble + (parts.pipeline + parts.data) / x.network;
};

const show = () => {
  const x = {};
  for (const input of inputs) {
    x[input.id.slice(2)] = Number(input.value);
    input.parentElement.querySelector("output").value = input.value;
  }
  const told = held.plans.map((plan) => ({ layout: plan.layout, step: stepOf(plan.parts, x) }));
  told.sort((a, b) => a.step - b.step);
  rows.replaceChildren(...told.map((one) => {
    const rate = held.tokens / one.step;
    const hours = x.tokens * 1e9 / rate / 3600;
    const row = document.createElement("tr");
    const cells = [
      one.layout,
      one.step >= 1 ? `${one.step.toPrecision(3)} s` : `${(1e3 * one.step).toPrecision(3)} ms`,
      Math.round(rate).toLocaleString("en"),
      hours < 2400 ? (hours / 24).toPrecision(3) : Math.round(hours / 24).toLocaleString("en"),
      Math.round(hours * held.world * x.price).toLocaleString("en"),
    ];
    cells.forEach((text, place) => {
      const cell = document.createElement(place ? "td" : "th");
      cell.textContent = text;
      if (place) cell.className = "n"; else cell.scope = "row";
      row.append(cell);
    });
    return row;
  }));
};

for (const input of inputs) input.addEventListener("input", show);
show();
