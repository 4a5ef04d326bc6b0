"use strict";
// Tables sort by a click on a head; charts show the values at the step under the pointer. The page is complete without.

function sortBy(head) {
  const column = [...head.parentNode.children].indexOf(head);
  const body = head.closest("table").tBodies[0];
  const wasDescending = head.getAttribute("aria-sort") === "descending";
  const numeric = head.classList.contains("number");
  const key = (row) => row.cells[column].dataset.sort;
  const rows = [...body.rows].sort((a, b) => (numeric ? key(a) - key(b) : key(a).localeCompare(key(b))));
  const descending = numeric ? !wasDescending : head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  body.append(...(descending ? rows.reverse() : rows));
}

function bytesText(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (size >= 1024 && place < units.length - 1) { size /= 1024; place += 1; }
  return `${size.toFixed(place && size < 100 ? 1 : 0)} ${units[place]}`;
}

function followPointer(figure) {
  const chart = figure.querySelector("svg");
  const cursor = chart.querySelector(".cursor");
  const readout = figure.querySelector(".readout");
  const data = JSON.parse(figure.querySelector("script").textContent);
  const left = Number(chart.dataset.left), right = Number(chart.dataset.right);
  const hide = () => { cursor.style.visibility = readout.style.visibility = "hidden"; };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const step = Math.floor(((x - left) / (right - left)) * data.steps);
    if (step < 0 || step >= data.steps) return hide();
    const place = left + ((step + 0.5) / data.steps) * (right - left);
    cursor.setAttribute("x1", place);
    cursor.setAttribute("x2", place);
    readout.replaceChildren(`step ${step}`);
    for (const line of data.lines) {
      if (step >= line.during.length) continue;
      const row = document.createElement("div");
      const dot = document.createElement("i");
      dot.className = `dot s${line.color}`;
      row.append(dot, `${line.label}: ${bytesText(line.during[step])}`);
      readout.append(row);
    }
    const fraction = place / chart.viewBox.baseVal.width;
    readout.style.left = fraction < 0.5 ? `calc(${100 * fraction}% + 12px)` : "auto";
    readout.style.right = fraction < 0.5 ? "auto" : `calc(${100 - 100 * fraction}% + 12px)`;
    cursor.style.visibility = readout.style.visibility = "visible";
  });
  chart.addEventListener("pointerleave", hide);
}

for (const head of document.querySelectorAll("th")) {
  head.addEventListener("click", () => sortBy(head));
  head.addEventListener("keydown", (event) => { if (event.key === "Enter") sortBy(head); });
}
for (const figure of document.querySelectorAll("figure")) followPointer(figure);
document.documentElement.dataset.script = "ran";
