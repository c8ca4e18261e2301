// The page: tabs of stages with their charts, the lineage's details, the theme.
const DATA = JSON.parse(document.getElementById("data").textContent);

function figures(stage, wanted) {
  const held = DATA.runs.map((run, i) => [i, run.label, run.curves[stage]]).filter(([, , own]) => own);
  const ids = [...new Set(held.flatMap(([, , own]) => own.panels.map((panel) => panel.id)))].filter(wanted);
  return ids.map((id) => {
    const lines = [], bands = [];
    let first = null;
    for (const [index, label, own] of held) {
      const panel = own.panels.find((p) => p.id === id);
      if (!panel) continue;
      first = first || panel;
      const several = DATA.runs.length > 1;
      panel.series.forEach((series, i) => lines.push({
        ...series,
        run: label,
        name: series.label,
        label: several ? `${label}: ${series.label}` : series.label,
        colour: several ? index % 8 : series.low ? 3 : i % 8,
        // Eight colours are hard to tell apart, four are not.
        dash: (several ? i : Math.floor(i / 4)) % DASHES.length,
      }));
      if (panel.band) bands.push({ ...panel.band, colour: several ? index % 8 : 0 });
    }
    const unit = bands.length ? `${first.unit}; shaded: ${bands[0].label}` : first.unit;
    return chart({ ...first, unit }, lines, bands, held.flatMap(([, , own]) => own.alarms));
  });
}

function tabs(place, panels, stages, wanted, then) {
  const bar = document.getElementById(place), target = document.getElementById(panels);
  if (!bar) return;  // a page of evaluations alone
  function choose(stage) {
    for (const button of bar.children) button.setAttribute("aria-pressed", String(button.dataset.stage === stage));
    target.replaceChildren(...figures(stage, wanted));
    if (then) then(stage);
  }
  for (const stage of stages) {
    const button = node("button", { type: "button", "aria-pressed": "false", "data-stage": stage, onclick: () => choose(stage) }, node("bdi", { text: stage }));
    bar.append(button);
  }
  if (stages.length) choose(stages[0]);
  else target.append(node("p", { class: "none", text: "No stage has such curves yet." }));
}

function thinned(stage) {
  let most = 0, kept = 0;
  for (const run of DATA.runs) for (const panel of run.curves[stage] ? run.curves[stage].panels : []) for (const series of panel.series) if (series.n > most) { most = series.n; kept = series.x.length; }
  document.getElementById("curves-caption").textContent = kept < most ? `Drawn from ${kept.toLocaleString("en")} of ${most.toLocaleString("en")} logged points a line; the lowest and the highest of every stretch are kept.` : `All ${most.toLocaleString("en")} logged points are drawn.`;
}

const FIGURE_1 = ["accuracy", "length"];
const ALL = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.curves)))];
const RL = ALL.filter((stage) => DATA.runs.some((run) => run.curves[stage] && run.curves[stage].rl));
tabs("figure-1-stages", "figure-1-panels", RL, (id) => FIGURE_1.includes(id));
tabs("curves-stages", "curves-panels", [...RL, ...ALL.filter((s) => !RL.includes(s))], (id) => !FIGURE_1.includes(id), thinned);

function chooseBox(box) {
  const { run, name } = box.dataset;
  const drawing = box.closest(".lineage"), facts = document.getElementById(`facts-${run}`);
  const isOn = box.getAttribute("aria-pressed") !== "true";
  drawing.querySelectorAll(".box").forEach((other) => other.setAttribute("aria-pressed", String(other === box && isOn)));
  drawing.classList.toggle("chosen", isOn);
  drawing.querySelectorAll("[data-from]").forEach((line) => line.classList.toggle("on", isOn && (line.dataset.from === name || line.dataset.to === name)));
  if (!isOn) {
    facts.replaceChildren(node("p", { class: "none", text: "Choose a stage to read its inputs, hashes, settings and versions." }));
    return;
  }
  const rows = DATA.runs[run].boxes[box.dataset.box].facts;
  facts.replaceChildren(node("h3", {}, node("bdi", { text: name })), node("dl", {}, ...rows.flatMap(([key, text]) => [node("dt", { text: key }), node("dd", { text })])));
}
for (const box of document.querySelectorAll(".box")) {
  box.addEventListener("click", () => chooseBox(box));
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    chooseBox(box);
  });
}

showSamples(DATA.samples, DATA.runs);

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
});
