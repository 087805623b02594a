// Everything else: recommendations, limits, the chosen network, tables.

// --- recommendations

function advice(front) {
  const within = limits.some((limit) => limit !== Infinity) ? " within the limits" : "";
  if (!front.length) {
    const nearest = evaluated.length ? " The nearest ones are in the table." : "";
    return `No ${noun} keeps all ${constraints.length ? `constraints${within}` : "limits"}.${nearest}`;
  }
  const count = front.length === 1 ? `1 ${noun}${within} is` : `${front.length} ${noun}s${within} are`;
  if (objectives === 1) return `${count} better than all others.`;
  if (front.length === 1) return `${count} the best in every objective.`;
  const why = "it gives up least of every objective, being farthest from the line between the extremes";
  return `${count} on the front: no other is better in every objective. The knee is the best balance: ${why}.`;
}

function showCards({ front, picks }) {
  byId("advice").textContent = advice(front);
  byId("cards").replaceChildren(
    ...[...picks].map(([network, titles]) =>
      element(
        "button",
        {
          type: "button",
          className: "card",
          "aria-pressed": network === state.chosen,
          onclick: () => choose(network, true),
        },
        element("strong", { textContent: titles.join(" · ") }),
        ...goals.map((metric) => element("span", { textContent: valueText(network, metric) })),
        element("small", {
          textContent: network.feasible ? network.name : `${network.name}, breaks another constraint`,
        }),
      ),
    ),
  );
}

// --- limits

function showLimits() {
  const form = byId("sliders");
  const lifts = [];
  form.onsubmit = (event) => event.preventDefault();
  metrics.forEach((metric, index) => {
    const losses = [...new Set(evaluated.map((network) => loss(network, index)).filter(Number.isFinite))].sort(
      (a, b) => a - b,
    );
    if (losses.length < 2) return;
    const label = element("span");
    const slider = element("input", {
      type: "range",
      min: 0,
      max: losses.length - 1,
      step: 1,
      "aria-label": `Limit of ${metric.label}`,
    });
    const box = element("input", { type: "number", step: "any", "aria-label": `Limit of ${metric.label} as a number` });
    const set = (limit, moved) => {
      limits[index] = limit;
      const value = metric.sign * (limit === Infinity ? losses.at(-1) : limit);
      label.textContent = limit === Infinity ? `${metric.label}: any` : bound(index, value);
      slider.setAttribute("aria-valuetext", label.textContent);
      if (moved !== slider) slider.value = losses.filter((other) => other <= limit).length - 1;
      if (moved !== box) box.value = limit === Infinity ? "" : Number(value.toPrecision(7));
      if (moved) show();
    };
    slider.oninput = () => set(+slider.value === losses.length - 1 ? Infinity : losses[slider.value], slider);
    box.oninput = () => set(box.value === "" ? Infinity : metric.sign * box.value, box);
    form.append(element("div", { className: "slider" }, label, slider, box));
    lifts.push(() => set(Infinity, null));
  });
  const lift = () => lifts.forEach((one) => one());
  const onclick = () => {
    lift();
    show();
  };
  form.append(element("div", {}, element("button", { type: "button", textContent: "No limits", onclick })));
  lift();
}

// --- the chosen network

function choose(network, isFar = false) {
  state.chosen = network;
  history.replaceState(null, "", `#network-${network.index}`);
  show();
  byId("said").textContent = `${network.name}: ${goals.map((metric) => valueText(network, metric)).join(", ")}`;
  if (isFar) byId("network").focus();
}

function showNetwork() {
  const network = state.chosen;
  const section = byId("network");
  if (!network) return section.replaceChildren();
  const rows = metrics.flatMap((metric, index) => {
    if (network.values[index] === null && !network.predicted[index]) return [];
    const notes = [
      network.evaluation && network.predicted[index]?.[1] // a count was no prediction
        ? `predicted before: ${prediction(network.predicted[index])}`
        : null,
      network.spreads[index] ? spreadNote(network.spreads[index]) : null,
    ].filter(Boolean);
    const value =
      network.values[index] === null
        ? `${prediction(network.predicted[index])} (predicted)`
        : measurement(network, index);
    return [
      element("dt", { textContent: metric.label }),
      element("dd", { textContent: value }, ...notes.map((textContent) => element("small", { textContent }))),
    ];
  });
  const tests = network.test.flatMap(([label, value]) => [
    element("dt", { textContent: label }),
    element("dd", { textContent: number(value) }, element("small", { textContent: "not to choose by" })),
  ]);
  section.replaceChildren(
    element("h2", { id: "network-title", textContent: network.name }),
    element("p", { textContent: standing(network) }),
    element("dl", {}, ...rows, ...tests),
    files(network),
    element("p", {}, element("code", { textContent: network.notation })),
    ...drawings(network),
  );
}

const spreadNote = ([low, high, meaning]) =>
  high > low ? `${number(low, 4)} to ${number(high, 4)}: ${meaning}` : meaning;

function standing(network) {
  if (!network.evaluation) return "Not evaluated yet: what is given was predicted, with one standard deviation.";
  const { front, picks } = recommendations();
  const parts = [...(picks.get(network) || []), front.includes(network) ? "on the front" : "not on the front"];
  if (!network.feasible) parts.push(`breaks a constraint by ${number(network.violation)}`);
  if (network.same_as !== null) parts.push(`the same network as ${networks[network.same_as].name}`);
  return `${parts.join(" · ")} · evaluation ${network.evaluation} of ${network.search}.`;
}

function files(network) {
  const stem = network.name.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  const link = (label, href, download) => element("a", { href, download, textContent: label });
  const beside = network.model && !network.model.startsWith("data:");
  const links = [
    network.model
      ? link(beside ? "ONNX model (file beside this page)" : "ONNX model", network.model, `${stem}.onnx`)
      : null,
    network.text
      ? link("ONNX text", `data:text/plain;charset=utf-8,${encodeURIComponent(network.text)}`, `${stem}.txt`)
      : null,
  ];
  return element("p", { className: "tools" }, ...links);
}

function drawings(network) {
  if (!network.text) return data.not_built ? [element("p", { textContent: `Not drawn: ${data.not_built}.` })] : [];
  const parser = new DOMParser();
  const figures = Object.entries(network.drawings).map(([name, svg]) =>
    element(
      "figure",
      {},
      element("figcaption", { textContent: name === "net" ? "The network" : `Its block ${name}` }),
      document.importNode(parser.parseFromString(svg, "image/svg+xml").documentElement, true),
    ),
  );
  return [
    element(
      "div",
      { className: "blocks", tabIndex: 0, role: "group", "aria-label": "Drawing of the network" },
      ...figures,
    ),
    element(
      "details",
      {},
      element("summary", { textContent: "ONNX text" }),
      element("pre", { textContent: network.text, tabIndex: 0 }),
    ),
  ];
}

// --- tables

/** A table of rows of cells; a cell is a string or an element, headers are strings or elements with their sorting. */
function fill(table, headers, rows) {
  const head = element(
    "tr",
    {},
    ...headers.map(({ label, sorting }) =>
      element("th", { scope: "col", ...(sorting ? { "aria-sort": sorting } : {}) }, label),
    ),
  );
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

const cell = (content, className = "") => element("td", { className }, content);
const opener = (network) =>
  element("button", { type: "button", textContent: network.name, onclick: () => choose(network, true) });
const row = (network, ...cells) =>
  element(
    "tr",
    network === state.chosen ? { "aria-current": "true" } : {},
    element("th", { scope: "row" }, opener(network)),
    ...cells,
  );

const columns = [
  { label: titled(noun), key: (network) => network.index },
  ...metrics.map((metric, index) => ({
    label: metric.label,
    key: (network) => loss(network, index),
    text: (network) => measurement(network, index),
    metric: index,
  })),
  ...(data.searches.length > 1
    ? [{ label: "Found by", key: (network) => network.search, text: (network) => network.search }]
    : []),
  { label: "Evaluation", key: (network) => network.evaluation, text: (network) => String(network.evaluation) },
];
const MAX_ROWS = 1000;

function tableNetworks({ front }) {
  const some = state.all || !front.length ? evaluated.filter(isWithin) : [...front];
  if (!front.length && !state.all) some.sort((a, b) => a.violation - b.violation);
  if (!state.sorted) return some;
  const { key } = columns[state.sorted.column],
    turn = state.sorted.descending ? -1 : 1;
  return some.sort((a, b) => turn * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
}

function showTable(found) {
  const headers = columns.map(({ label }, column) => {
    const isSorted = state.sorted && state.sorted.column === column;
    const onclick = () => {
      state.sorted = { column, descending: Boolean(isSorted && !state.sorted.descending) };
      show();
      byId("table").querySelectorAll("thead button")[column].focus();
    };
    return {
      label: element("button", { type: "button", textContent: label, onclick }),
      sorting: isSorted ? (state.sorted.descending ? "descending" : "ascending") : "none",
    };
  });
  const rows = tableNetworks(found)
    .slice(0, MAX_ROWS)
    .map((network) => row(network, ...columns.slice(1).map(({ text }) => cell(text(network)))));
  fill(byId("table"), headers, rows);
  const outside = evaluated.length > MAX_ROWS ? `, the first ${MAX_ROWS} rows` : "";
  byId("all-label").textContent = `Show all ${evaluated.length} evaluated ${noun}s, not only the front${outside}`;
}

function saveCsv() {
  const quoted = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const lines = [
    ["architecture", ...metrics.map((metric) => metric.name), "search", "evaluation"].map(quoted).join(","),
  ];
  for (const network of tableNetworks(recommendations())) {
    lines.push([network.notation, ...network.values, network.search, network.evaluation].map(quoted).join(","));
  }
  element("a", {
    href: URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" })),
    download: "networks.csv",
  }).click();
}

function showNext() {
  byId("next-section").hidden = !proposed.length;
  const shown = metrics
    .map((_, index) => index)
    .filter((index) => proposed.some((network) => network.predicted[index] || network.values[index] !== null));
  const text = (network, index) =>
    network.values[index] === null ? prediction(network.predicted[index]) : measurement(network, index);
  fill(
    byId("next"),
    [{ label: "Proposal" }, ...shown.map((index) => ({ label: metrics[index].label }))],
    proposed.map((network) => row(network, ...shown.map((index) => cell(text(network, index))))),
  );
}

// --- how it was made

function showSamplers() {
  byId("samplers-section").hidden = objectives === 1;
  byId("yardstick").textContent =
    `HV@n is the share of the hypervolume of the ${data.yardstick} after n evaluations, higher is better; ` +
    "IGD+ is the distance from it, lower is better.";
  const names = Object.keys(data.samplers[0] || {});
  fill(
    byId("samplers"),
    names.map((label) => ({ label })),
    data.samplers.map((line) => element("tr", {}, ...names.map((name) => cell(String(line[name] ?? ""))))),
  );
}

function showFailures() {
  byId("failures-section").hidden = !data.failures.length;
  fill(
    byId("failures"),
    [{ label: "Reason" }, { label: "Choices" }],
    data.failures.map(({ reason, choices }) => element("tr", {}, cell(reason, "text"), cell(choices, "text"))),
  );
}

function showMade() {
  for (const { title, rows } of data.made) {
    const list = element(
      "dl",
      {},
      ...rows.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })]),
    );
    byId("made").append(element("div", {}, element("h3", { textContent: title }), list));
  }
}

// --- all together

function show() {
  const found = recommendations();
  showCards(found);
  showNetwork();
  showTable(found);
  showNext();
  scatters.forEach((scatter) => drawScatter(scatter, found));
  drawParallel(found);
  drawAgreement();
}

function showScheme() {
  colours.clear();
  drawCurves();
  show();
}

function begin() {
  const labels = goals.map((metric) => metrics[metric].label).join(", ");
  byId("title").textContent = `${labels} on ${data.searched}`;
  document.title = byId("title").textContent;
  const failed = data.failures.length ? `, ${data.failures.length} could not be evaluated` : "";
  byId("about").textContent =
    `${evaluated.length} ${noun}s evaluated by ${data.searches.join("; ")}${failed}.` +
    (data.has_space && data.not_built ? ` Networks are not drawn: ${data.not_built}.` : "");
  byId("ship").textContent = `Which ${noun} to ${data.has_space ? "ship" : "choose"}`;
  byId("next-legend").hidden = !proposed.length;
  byId("table-title").textContent = titled(`${noun}s`);
  const linked = networks[(location.hash.match(/^#network-(\d+)$/) || [])[1]];
  state.chosen = linked || [...recommendations().picks.keys()][0] || evaluated[0] || null;
  showLimits();
  showScatters();
  showAgreement();
  showSamplers();
  showFailures();
  showMade();
  byId("all").onchange = (event) => {
    state.all = event.target.checked;
    show();
  };
  byId("csv").onclick = saveCsv;
  showScheme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showScheme);
  matchMedia("(max-width: 60rem)").addEventListener("change", show);
}

begin();
