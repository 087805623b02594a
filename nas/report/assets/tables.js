// All tables, and the section on how the searches were run.

// --- tables

/** Fills a table. Headers have a label (string or element) and their sort order; rows are elements. */
function fill(table, headers, rows) {
  const head = element(
    "tr",
    {},
    ...headers.map(({ label, sorting, isText }) =>
      element(
        "th",
        { scope: "col", className: isText ? "text" : "", ...(sorting ? { "aria-sort": sorting } : {}) },
        label,
      ),
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
  ...metrics.flatMap((metric, index) => [
    {
      label: metric.label,
      key: (network) => loss(network, index),
      text: (network) => measurement(network, index),
    },
    ...(networks.some((network) => network.again[index])
      ? [
          {
            label: "measured again",
            key: (network) => (network.again[index] ? metric.sign * network.again[index][0] : Infinity),
            text: (network) => (network.again[index] ? later(network, index) : "–"),
          },
        ]
      : []),
  ]),
  ...(data.searches.length > 1
    ? [{ label: "Found by", key: (network) => network.search, text: (network) => network.search }]
    : []),
  ...(data.has_space ? [{ label: "Trial", key: (network) => network.trial, text: (network) => String(network.trial) }] : []),
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
  byId("all").parentNode.hidden = evaluated.length < 2;
  const outside = evaluated.length > MAX_ROWS ? `, first ${MAX_ROWS} rows` : "";
  byId("all-label").textContent = `Show all ${counted(evaluated.length)} evaluated, not only the front${outside}`;
}

function saveCsv() {
  const quoted = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
  // Columns as in networks.csv. A metric that is named like a column of the origin takes its place.
  const names = metrics.map((metric) => metric.name);
  const origins = data.origin_columns.map((_, index) => index).filter((index) => !names.includes(data.origin_columns[index]));
  const lines = [["architecture", ...names, ...origins.map((index) => data.origin_columns[index])].map(quoted).join(",")];
  for (const network of tableNetworks(recommendations())) {
    const origin = origins.map((index) => network.origin[index]);
    lines.push([network.notation, ...network.values, ...origin].map(quoted).join(","));
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
  const isByCost = proposed.some((network) => network.plan);
  const predicted = proposed.some((network) => network.predicted.some(Boolean));
  byId("next-note").textContent =
    `Chosen by the sampler from all evaluations so far, best first${isByCost ? ", if the budget were larger" : ""}` +
    (predicted ? "; values are predictions with one standard deviation." : ".");
  fill(
    byId("next"),
    [
      { label: "Proposal" },
      ...(isByCost ? [{ label: "Training" }] : []),
      ...shown.map((index) => ({ label: metrics[index].label })),
    ],
    proposed.map((network) =>
      row(network, ...(isByCost ? [cell(network.plan)] : []), ...shown.map((index) => cell(text(network, index)))),
    ),
  );
}

/** Trainings that a search by cost has paused or stopped. */
function showPaused() {
  byId("paused-section").hidden = !data.paused.length;
  const several = data.searches.length > 1;
  const shown = metrics.map((_, index) => index).filter((index) => data.paused.some(({ values }) => values[index] !== null));
  fill(
    byId("paused"),
    [
      { label: titled(noun), isText: true },
      { label: "Epochs" },
      ...shown.map((index) => ({ label: metrics[index].label })),
      ...(several ? [{ label: "Of" }] : []),
    ],
    data.paused
      .slice(0, MAX_ROWS)
      .map(({ notation, epochs, values, search }) =>
        element(
          "tr",
          {},
          cell(notation, "text"),
          cell(epochs),
          ...shown.map((index) => cell(number(values[index]))),
          ...(several ? [cell(search)] : []),
        ),
      ),
  );
}

/** Runtimes in which the same networks were measured, the fastest first. */
function showRuntimes() {
  const rows = data.runtimes;
  byId("runtimes-section").hidden = !rows.length;
  if (!rows.length) return;
  const [fastest] = rows;
  byId("runtimes-note").textContent =
    `Latencies of ${counted(fastest.networks)} in each runtime. Ratios are geometric means; τ says how far a runtime ` +
    `orders them as ${fastest.runtime} does: 1 if equally.`;
  const headers = ["Runtime", "Median, ms", `Time, ${fastest.runtime} = 1`, "Fastest for", "τ"];
  fill(
    byId("runtimes"),
    headers.map((label, column) => ({ label, isText: !column })),
    rows.map(({ runtime, median, ratio, fastest: count, tau }) =>
      element(
        "tr",
        {},
        cell(runtime, "text"),
        ...[number(median, 3), number(ratio, 3), counted(count), number(tau, 2)].map((text) => cell(text)),
      ),
    ),
  );
}

// --- how it was made

function showSamplers() {
  byId("samplers-section").hidden = objectives === 1;
  byId("yardstick").textContent =
    `HV@n is the hypervolume after n evaluations, relative to the ${data.yardstick}; higher is better. ` +
    "IGD+ is the distance from that front; lower is better.";
  const names = Object.keys(data.samplers[0] || {});
  fill(
    byId("samplers"),
    names.map((label) => ({ label })),
    data.samplers.map((line) => element("tr", {}, ...names.map((name) => cell(String(line[name] ?? ""))))),
  );
}

function showFailures() {
  byId("failures-section").hidden = !data.failures.length;
  const several = data.searches.length > 1;
  fill(
    byId("failures"),
    [
      { label: "Reason", isText: true },
      { label: "Choices", isText: true },
      ...(several ? [{ label: "Search", isText: true }] : []),
    ],
    data.failures
      .slice(0, MAX_ROWS)
      .map(({ reason, choices, search }) =>
        element("tr", {}, ...[reason, choices, ...(several ? [search] : [])].map((text) => cell(text, "text"))),
      ),
  );
}

/** A command that wraps between words only, not after hyphens. */
const words = (text) =>
  text
    .split(" ")
    .flatMap((word) => [element("span", { className: word.length < 30 ? "word" : "", textContent: word }), " "]);

function showMade() {
  for (const { title, rows } of data.made) {
    const list = element(
      "dl",
      {},
      ...rows.flatMap(([name, value]) => [
        element("dt", { textContent: name }),
        element("dd", {}, ...(name === "command" ? words(value) : [value])),
      ]),
    );
    byId("made").append(element("div", {}, element("h3", { textContent: title }), list));
  }
}
