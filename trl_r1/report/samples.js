// Samples: filters, pages, one card each. Texts of models are set as text, never as markup.
const PAGE = 10;

function showSamples(data, runs) {
  const { sources, texts, rows } = data;
  const form = document.getElementById("filters"), list = document.getElementById("list");
  const pagers = document.querySelectorAll("[data-pager]"), count = document.getElementById("count");
  let page = 0, found = rows;
  const unique = (values) => [...new Set(values)];
  const where = (source) => `${source.stage}: ${source.kind}`;
  const choices = {
    run: ["Run", unique(sources.map((s) => runs[s.run].label)), (row) => runs[sources[row.s].run].label],
    stage: ["Stage", unique(sources.map(where)), (row) => where(sources[row.s])],
    task: ["Task", unique(rows.map((row) => texts[row.k])).sort(), (row) => texts[row.k]],
    outcome: ["Right or wrong", ["right", "wrong", "in part", "not graded"].filter((o) => rows.some((r) => r.o === o)), (row) => row.o],
    kept: ["Kept, or why not", unique(rows.map((row) => row.v).filter(Boolean)).sort(), (row) => row.v],
  };
  for (const [name, [title, values]] of Object.entries(choices)) {
    if (name === "run" && runs.length < 2 || !values.length) continue;
    const select = node("select", { name }, node("option", { value: "", text: "all" }));
    values.forEach((value, i) => select.append(node("option", { value: String(i), text: value || "(none)" })));
    form.append(node("label", {}, title, select));
  }
  form.append(node("label", {}, "Text", node("input", { name: "words", type: "search", placeholder: "in prompt or response", autocomplete: "off" })));
  form.append(node("label", {}, "Order", node("select", { name: "order" }, ...[["steps", "by stage, step"], ["long", "longest"], ["low", "lowest reward"], ["high", "highest reward"]].map(([value, text]) => node("option", { value, text })))));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);

  function apply() {
    const wanted = Object.entries(choices).map(([name, [, values, of]]) => {
      const chosen = form.elements.namedItem(name);
      return chosen && chosen.value !== "" ? (row) => of(row) === values[Number(chosen.value)] : null;
    }).filter(Boolean);
    const words = form.elements.namedItem("words").value.toLowerCase();
    if (words) wanted.push((row) => [row.r || "", row.a, ...row.p.map((turn) => turn[1])].some((text) => text.toLowerCase().includes(words)));
    found = rows.filter((row) => wanted.every((test) => test(row)));
    const by = { long: (row) => -(row.n || 0), low: (row) => row.z ?? total(row), high: (row) => -(row.z ?? total(row)) }[form.elements.namedItem("order").value];
    found = by ? [...found].sort((a, b) => by(a) - by(b)) : [...found].sort((a, b) => a.s - b.s || (a.t ?? 0) - (b.t ?? 0));
    page = 0;
    show();
  }
  const total = (row) => row.w.reduce((sum, [, value, weight]) => sum + (value === null ? 0 : value * (weight ?? 1)), 0);

  function show() {
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    count.textContent = rows.length ? `${found.length.toLocaleString("en")} of the ${rows.length.toLocaleString("en")} samples in this page fit.` : "No samples were stored.";
    list.replaceChildren(...found.slice(page * PAGE, page * PAGE + PAGE).map(card));
    for (const pager of pagers) {
      const step = (text, to) => node("button", { type: "button", text, disabled: to < 0 || to >= pages || to === page ? "" : null, onclick: () => { page = to; show(); document.getElementById("samples").scrollIntoView(); } });
      pager.replaceChildren(step("First", 0), step("Back", page - 1), node("span", { text: `page ${page + 1} of ${pages}` }), step("Next", page + 1), step("Last", pages - 1));
      pager.hidden = pages < 2;
    }
  }

  function card(row) {
    const source = sources[row.s];
    const head = node("p", { class: "head" }, node("b", { text: row.o }));
    const facts = [runs.length > 1 ? runs[source.run].label : "", where(source), row.t === null || row.t === undefined ? "" : `step ${row.t}`, texts[row.k], row.n === null || row.n === undefined ? "" : `${row.n} tokens`, row.c ? "cut off at the limit" : "", row.v ? (row.v === "kept" ? "kept" : `left out: ${row.v}`) : "", row.u === false ? "not trained on" : ""];
    facts.filter(Boolean).forEach((fact) => head.append(node("bdi", { text: fact })));
    const made = node("article", { class: `sample ${row.o === "in part" ? "part" : row.o === "not graded" ? "" : row.o}` }, head);
    const last = row.p.length - 1;
    if (last > 0) made.append(node("details", {}, node("summary", { text: `${last} earlier message${last > 1 ? "s" : ""} of the prompt` }), ...row.p.slice(0, last).flatMap(turn)));
    if (last >= 0) made.append(...turn(row.p[last]));
    if (row.r !== null) made.append(node("details", { class: "reasoning" }, node("summary", { text: `Reasoning, ${row.r.length.toLocaleString("en")} characters` }), node("pre", { class: "text", dir: "auto", text: row.r })));
    made.append(node("p", { class: "who", text: "response" }), node("pre", { class: "text answer", dir: "auto", text: row.a || "(empty)" }));
    if (row.g !== null) made.append(node("p", { class: "who", text: "expected" }), node("pre", { class: "text", dir: "auto", text: row.g }));
    made.append(verdicts(row));
    return made;
  }

  function turn([role, text]) {
    return [node("p", { class: "who", text: role }), node("pre", { class: "text", dir: "auto", text })];
  }

  function verdicts(row) {
    const body = node("tbody"), isWeighted = row.w.some(([, , weight]) => weight !== null);
    for (const [name, value, weight, word, why, purpose] of row.w) {
      body.append(node("tr", {},
        node("th", { scope: "row", title: texts[purpose] }, node("code", { text: texts[name] })),
        node("td", { class: "num", text: value === null ? "–" : short(value) }),
        ...(isWeighted ? [node("td", { class: "num", text: weight === null ? "" : `× ${short(weight)}` })] : []),
        node("td", { text: [texts[word] === "ok" ? "" : texts[word], texts[why]].filter(Boolean).join(": ") })));
    }
    const parts = [];
    if (row.z !== null) parts.push(`weighted sum ${short(row.z)}`);
    if (row.d !== null) parts.push(`advantage ${short(row.d)}${row.d === 0 ? " (teaches nothing: no spread in its group)" : ""}`);
    if (row.f !== null) parts.push(`form: ${texts[row.f]}`);
    const made = node("div", {});
    if (row.w.length) made.append(node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Verdicts" }, node("table", { class: "verdicts" }, node("thead", {}, node("tr", {}, ...[["reward", ""], ["gave", "num"], ...(isWeighted ? [["weight", "num"]] : []), ["why", ""]].map(([text, kind]) => node("th", { scope: "col", text, class: kind })))), body)));
    if (parts.length) made.append(node("p", { class: "caption", text: parts.join(" · ") }));
    return made;
  }
  apply();
}
