// Recommendations, limits, the chosen network, and the start of the page.

// --- recommendations

function advice({ front, floor }) {
  const within = limits.some((limit) => limit !== Infinity) ? " within the limits" : "";
  if (!front.length) {
    const nearest = evaluated.length ? " The table lists the nearest ones." : "";
    return `No ${noun} satisfies all ${constraints.length ? `constraints${within}` : "limits"}.${nearest}`;
  }
  const count = `${counted(front.length)}${within} ${front.length === 1 ? "is" : "are"}`;
  if (evaluated.length === 1) return `Only ${counted(1)} has been evaluated${within}.`;
  if (objectives === 1) return `${count} better than all others.`;
  if (front.length === 1) return `${count} the best in every objective.`;
  const why = objectives === 2 ? ", being farthest from the line between the extremes" : " in sum, on scales from the best to the worst of the front";
  return (
    `${count} on the front: no other is better in every objective. ` +
    `The knee is the best balance: it gives up the least of all objectives${why}.${floorNote(front, floor)}`
  );
}

/** Where the knee is sought, if some networks of the front are too poor to be shipped. */
function floorNote(front, floor) {
  if (!costs.length || front.every((network) => loss(network, quality) <= floor)) return "";
  return ` It is sought among ${noun}s with ${bound(quality, Number((metrics[quality].sign * floor).toPrecision(3)))}.`;
}

function showCards(found) {
  const { picks } = found;
  byId("advice").textContent = advice(found);
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
  const others = element("div", { className: "sliders" });
  const lifts = [];
  form.onsubmit = (event) => event.preventDefault();
  metrics.forEach((metric, index) => {
    // From left to right values rise. A limit of a minimized metric lifts at the right end, that of a maximized one,
    // which is a lower bound, at the left end.
    const losses = [...new Set(evaluated.map((network) => loss(network, index)).filter(Number.isFinite))].sort(
      (a, b) => metric.sign * (a - b),
    );
    const loosest = Math.max(...losses);
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
      const value = metric.sign * (limit === Infinity ? loosest : limit);
      label.textContent = limit === Infinity ? `${metric.label}: any` : bound(index, value);
      slider.setAttribute("aria-valuetext", label.textContent);
      if (moved !== slider) {
        const kept = losses.filter((other) => other <= limit).length;
        slider.value = metric.sign > 0 ? kept - 1 : losses.length - kept;
      }
      if (moved !== box) box.value = limit === Infinity ? "" : Number(value.toPrecision(7));
      if (moved) show();
    };
    slider.oninput = () => set(losses[slider.value] === loosest ? Infinity : losses[slider.value], slider);
    box.oninput = () => set(box.value === "" ? Infinity : metric.sign * box.value, box);
    (isMain(index) ? form : others).append(element("div", { className: "slider" }, label, slider, box));
    lifts.push(() => set(Infinity, null));
  });
  const lift = () => lifts.forEach((one) => one());
  const onclick = () => {
    lift();
    show();
  };
  byId("limits").hidden = !lifts.length;
  form.append(element("div", {}, element("button", { type: "button", textContent: "No limits", onclick })));
  if (others.childElementCount) {
    byId("limits").append(further(others.childElementCount, others));
  }
  lift();
}

/** A fold with the metrics that are not shown at once. */
const further = (count, content) =>
  element("details", {}, element("summary", { textContent: counted(count, "further metric") }), content);

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
  if (!network) {
    byId("drawings").replaceChildren();
    return section.replaceChildren();
  }
  const rowsOf = (metric, index) => {
    if (network.values[index] === null && !network.predicted[index]) return [];
    const notes = [
      network.evaluation && network.predicted[index]?.[1] // without a spread, it was a count and no prediction
        ? `predicted before: ${prediction(network.predicted[index])}`
        : null,
      network.expected[index] ? `expected from all other networks: ${prediction(network.expected[index])}` : null,
      network.again[index] ? `later: ${later(network, index)} (${network.again[index][3]})` : null,
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
  };
  const all = metrics.map(rowsOf);
  const others = all.filter((rows, index) => rows.length && !isMain(index));
  const tests = network.test.flatMap(([label, value]) => [
    element("dt", { textContent: label }),
    element("dd", { textContent: number(value) }, element("small", { textContent: "not to choose by" })),
  ]);
  const outside = beyond(network);
  const { front } = recommendations();
  const warning = outside.length
    ? element(
        "p",
        { className: "warning", role: "status" },
        `This ${noun} is beyond your limit${outside.length > 1 ? "s" : ""}: ${outside.join(", ")}. `,
        front.length
          ? element("button", {
              type: "button",
              textContent: `Show the nearest ${noun} within`,
              onclick: () => choose(nearestOf(front, network)),
            })
          : "",
      )
    : "";
  section.replaceChildren(
    element("h2", { id: "network-title", textContent: network.name }),
    warning,
    element("p", { textContent: standing(network) }),
    element("dl", {}, ...all.filter((_, index) => isMain(index)).flat(), ...tests),
    others.length ? further(others.length, element("dl", {}, ...others.flat())) : "",
    files(network),
    element("p", {}, element("code", { textContent: network.notation })),
  );
  byId("drawings").replaceChildren(...drawings(network));
}

/** The network of a front whose objectives are nearest to those of another, on scales of the front's width. */
function nearestOf(front, network) {
  const widths = goals.map((metric) => width(extent(front.map((one) => one.values[metric]))));
  const distance = (one) =>
    goals.reduce((sum, metric) => sum + ((one.values[metric] - network.values[metric]) / widths[metric]) ** 2, 0);
  return front.reduce((a, b) => (distance(b) < distance(a) ? b : a));
}

/** The value that was measured again at the end of the search, with its error. */
function later(network, metric) {
  const [value, low, high] = network.again[metric];
  return withError(value, (high - low) / 2);
}

const spreadNote = ([low, high, meaning]) =>
  high > low ? `${rounded(low, (high - low) / 2)} to ${rounded(high, (high - low) / 2)}: ${meaning}` : meaning;

const MAX_OTHERS = 5; // evaluations of a network that are named besides its own

function standing(network) {
  if (!network.evaluation) {
    const predicted = network.predicted.some(Boolean) ? ": values are predictions ± one standard deviation" : "";
    return `Not evaluated yet${predicted}.${network.plan ? ` Next: ${network.plan}.` : ""}`;
  }
  const { front, picks } = recommendations();
  const parts = [...(picks.get(network) || []), front.includes(network) ? "on the front" : "not on the front"];
  if (!network.feasible) {
    const which = broken(network);
    parts.push(...(which.length ? which : [`breaks a constraint by ${number(network.violation)}`]));
  }
  const others = network.others.map(([search, trial]) => `trial ${trial} of ${search}`);
  const shown = others.slice(0, MAX_OTHERS).join("; ") + (others.length > MAX_OTHERS ? "; …" : "");
  const repeated = others.length ? ` Evaluated ${others.length + 1} times, also as ${shown}: values are means.` : "";
  return `${parts.join(" · ")} · trial ${network.trial} of ${network.search}.${repeated}`;
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
  const paused = data.paused.length ? `, ${counted(data.paused.length, "training")} not completed` : "";
  byId("about").textContent =
    `${counted(evaluated.length)} evaluated by ${data.searches.join("; ")}${failed}${paused}.` +
    (data.has_space && data.not_built ? ` Networks are not drawn: ${data.not_built}.` : "");
  byId("prospects").replaceChildren(...data.prospects.map((textContent) => element("li", { textContent })));
  byId("ship").textContent = `Which ${noun} to ${data.has_space ? "ship" : "choose"}`;
  byId("truth-legend").hidden = !(data.true_front.length && objectives === 2);
  byId("steps-legend").hidden = objectives > 2;
  byId("spread-legend").hidden = !evaluated.some((network) => goals.some((metric) => network.spreads[metric]));
  byId("next-legend").hidden = !proposed.some((network) => network.predicted[0]);
  byId("table-title").textContent = titled(`${noun}s`);
  const linked = networks[(location.hash.match(/^#network-(\d+)$/) || [])[1]];
  const nearest = [...evaluated].sort((a, b) => a.violation - b.violation)[0];
  state.chosen = linked || [...recommendations().picks.keys()][0] || nearest || null;
  showLimits();
  showScatters();
  showAgreement();
  showRuntimes();
  showSamplers();
  showPaused();
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
