// The charts, by Apache ECharts.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const ring = (name) => ({ color: "transparent", borderColor: colour(name), borderWidth: 2.5 });

function chartIn(container, label) {
  container.setAttribute("role", "group");
  container.setAttribute("aria-label", label);
  const chart = echarts.init(container);
  new ResizeObserver(() => chart.resize()).observe(container);
  chart.on("click", ({ data: point }) => point && point.network !== undefined && choose(networks[point.network]));
  return chart;
}

function axis(name, extent, options = {}) {
  const pad = 0.04 * (extent[1] - extent[0] || Math.abs(extent[0]) || 1);
  const lines = { lineStyle: { color: colour("grid") } };
  return {
    type: "value",
    scale: true,
    name,
    nameLocation: "middle",
    min: extent[0] - pad,
    max: extent[1] + pad,
    nameTextStyle: { color: colour("soft") },
    splitLine: lines,
    axisLine: { show: true, lineStyle: { color: colour("line") } },
    axisLabel: {
      color: colour("soft"),
      hideOverlap: true,
      formatter: (value) => number(value, 4),
      showMinLabel: false,
      showMaxLabel: false,
    },
    ...options,
  };
}

const xAxis = (name, extent) => axis(name, extent, { nameGap: 28 });
const yAxis = (name, extent) => axis(name, extent, { nameGap: 48 });
const GRID = { left: 66, right: 16, top: 14, bottom: 48 };

function extent(values) {
  const finite = values.filter(Number.isFinite);
  return finite.length ? [Math.min(...finite), Math.max(...finite)] : [0, 1];
}

function tooltip(formatter) {
  return {
    trigger: "item",
    confine: true,
    backgroundColor: colour("box"),
    borderColor: colour("line"),
    textStyle: { color: colour("ink"), fontSize: 13 },
    formatter,
  };
}

function describe({ data: point }) {
  const network = point && networks[point.network];
  if (!network) return "";
  const lines = goals.map(
    (metric) =>
      `${metrics[metric].label}: ${network.evaluation ? measurement(network, metric) : prediction(network.predicted[metric])}`,
  );
  return element(
    "div",
    {},
    element("strong", { textContent: network.name }),
    ...lines.map((text) => element("div", { textContent: text })),
  );
}

/** Scatter charts of the first objective against each other one; of a single objective against the evaluations. */
const pairs = objectives > 1 ? goals.slice(1) : [null];
const scatters = [];

function place(network, x) {
  if (!network.evaluation) return [network.predicted[x][0], network.predicted[0][0]];
  return [x === null ? network.evaluation : network.values[x], network.values[0]];
}

function showScatters() {
  for (const x of pairs) {
    const names = [x === null ? "Evaluation" : metrics[x].label, metrics[0].label];
    const container = element("div", { className: "chart", tabIndex: 0 });
    const label = `Chart of ${names[1]} against ${names[0]}. Arrow keys walk along the front, plus and minus zoom; the table below holds the same networks.`;
    const chart = chartIn(container, label);
    const button = (text, title, onclick) =>
      element("button", { type: "button", textContent: text, title, "aria-label": title, onclick });
    byId("charts").append(
      container,
      element(
        "p",
        { className: "tools" },
        button("+", "Zoom in", () => zoom(scatter, 0.6)),
        button("−", "Zoom out", () => zoom(scatter, 1 / 0.6)),
        button("Front", "Zoom to the front", () => zoomToFront(scatter)),
        button("All", "Show all networks", () => zoom(scatter, Infinity)),
        element("small", { textContent: "Drag to move, pinch or Ctrl + wheel to zoom, click for the network." }),
      ),
    );
    const scatter = { chart, x, names, window: null };
    chart.resize();
    container.onkeydown = (event) => walk(event, scatter);
    scatters.push(scatter);
  }
}

function drawScatter(scatter, { front, picks }) {
  const { chart, x, names } = scatter;
  const isFront = new Set(front);
  const shown = proposed.filter((network) => x !== null && network.predicted[0] && network.predicted[x]);
  const points = (some) => some.map((network) => ({ value: place(network, x), network: network.index }));
  const series = (id, some, options) => ({ id, type: "scatter", data: points(some), ...options });
  const all = [...evaluated, ...shown].map((network) => place(network, x));
  const truth = data.true_front.map((values) => [x === null ? 0 : values[x], values[0]]);
  const extents = [0, 1].map((i) => extent([...all, ...(x === null ? [] : truth)].map((point) => point[i])));
  const line = (id, values, options) => ({
    id,
    type: "line",
    data: values,
    symbol: "none",
    silent: true,
    z: 1,
    ...options,
  });
  const others = evaluated.filter((network) => !isFront.has(network));
  const option = {
    animation: false,
    grid: GRID,
    xAxis: xAxis(names[0], extents[0]),
    yAxis: yAxis(names[1], extents[1]),
    tooltip: tooltip(describe),
    series: [
      series(
        "outside",
        others.filter((n) => !isWithin(n)),
        { symbolSize: 6, itemStyle: { color: colour("other"), opacity: 0.15 } },
      ),
      series("other", others.filter(isWithin), { symbolSize: 6, itemStyle: { color: colour("other"), opacity: 0.7 } }),
      line("truth", objectives === 2 ? staircase(truth, x) : [], {
        lineStyle: { color: colour("ink"), type: "dashed", width: 1 },
      }),
      line(
        "steps",
        objectives === 2
          ? staircase(
              front.map((network) => place(network, x)),
              x,
            )
          : [],
        { lineStyle: { color: colour("front"), width: 1.5 } },
      ),
      line("spread", spreads([...front, ...shown], x), { lineStyle: { color: colour("soft"), width: 1 } }),
      series("next", shown, { symbol: "diamond", symbolSize: 11, itemStyle: ring("next") }),
      series("front", front, { symbolSize: 10, z: 3, itemStyle: { color: colour("front") } }),
      series("picks", [...picks.keys()], {
        symbol: "diamond",
        symbolSize: 16,
        z: 4,
        itemStyle: { color: colour("pick") },
      }),
      series("chosen", state.chosen && (x !== null || state.chosen.evaluation) ? [state.chosen] : [], {
        symbolSize: 24,
        z: 5,
        silent: true,
        itemStyle: ring("pick"),
      }),
    ],
  };
  scatter.extents = extents;
  if (!scatter.window) {
    const inside = {
      type: "inside",
      filterMode: "none",
      zoomOnMouseWheel: "ctrl",
      moveOnMouseWheel: false,
      preventDefaultMouseMove: false,
    };
    option.dataZoom = [
      { ...inside, xAxisIndex: 0 },
      { ...inside, yAxisIndex: 0 },
    ];
  }
  chart.setOption(option, { replaceMerge: ["series"] });
  if (!scatter.window) zoomToFront(scatter);
}

/** Corners of the border of what a front of two objectives dominates. */
function staircase(points, x) {
  const sorted = [...points].sort((a, b) => metrics[x].sign * (a[0] - b[0]));
  return sorted.flatMap((point, i) => (i ? [[point[0], sorted[i - 1][1]], point] : [point]));
}

/** Lines of one standard deviation in both directions, with gaps between them. */
function spreads(some, x) {
  const deviation = (network, metric) =>
    metric !== null && (network.evaluation ? network.stds[metric] : network.predicted[metric][1]);
  return some.flatMap((network) => {
    const [a, b] = place(network, x),
      [dx, dy] = [deviation(network, x), deviation(network, 0)];
    return [
      ...(dx
        ? [
            [a - dx, b],
            [a + dx, b],
            [null, null],
          ]
        : []),
      ...(dy
        ? [
            [a, b - dy],
            [a, b + dy],
            [null, null],
          ]
        : []),
    ];
  });
}

function zoomTo(scatter, window) {
  scatter.window = window;
  window.forEach(([startValue, endValue], dataZoomIndex) =>
    scatter.chart.dispatchAction({ type: "dataZoom", dataZoomIndex, startValue, endValue }),
  );
}

function zoomToFront(scatter) {
  const front = frontOf(evaluated.filter((network) => network.feasible));
  const shown = (front.length ? front : evaluated).map((network) => place(network, scatter.x));
  zoomTo(
    scatter,
    [0, 1].map((i) => {
      const [low, high] = scatter.x === null ? scatter.extents[i] : extent(shown.map((point) => point[i]));
      const margin = 0.12 * (high - low || Math.abs(high) || 1);
      return [low - margin, high + margin];
    }),
  );
}

function zoom(scatter, factor) {
  const windows = scatter.chart.getOption().dataZoom.map(({ startValue, endValue }) => [startValue, endValue]);
  zoomTo(
    scatter,
    windows.map(([low, high], i) => {
      const [lowest, highest] = scatter.extents[i],
        margin = 0.04 * (highest - lowest || 1);
      const middle = (low + high) / 2,
        half = (factor * (high - low)) / 2;
      return [Math.max(lowest - margin, middle - half), Math.min(highest + margin, middle + half)];
    }),
  );
}

function walk(event, scatter) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === "+" || event.key === "-") zoom(scatter, event.key === "+" ? 0.6 : 1 / 0.6);
  if (!step) return;
  event.preventDefault();
  const along = recommendations().front.sort((a, b) => place(a, scatter.x)[0] - place(b, scatter.x)[0]);
  const at = along.indexOf(state.chosen);
  const next = along[at < 0 ? 0 : Math.min(along.length - 1, Math.max(0, at + step))];
  if (next) choose(next);
}

let parallel = null;

function drawParallel({ front }) {
  if (objectives < 3) return;
  byId("parallel-section").hidden = false;
  parallel ??= chartIn(byId("parallel"), "Parallel coordinates of the front; the table below holds the same networks.");
  const isNarrow = byId("parallel").clientWidth < 600;
  const text = { color: colour("soft") };
  const item = (network) => ({
    value: goals.map((metric) => network.values[metric]),
    network: network.index,
    lineStyle: network === state.chosen ? { color: colour("pick"), width: 4, opacity: 1 } : {},
  });
  parallel.setOption(
    {
      animation: false,
      tooltip: tooltip(describe),
      parallel: {
        layout: isNarrow ? "vertical" : "horizontal",
        left: isNarrow ? 24 : 90,
        right: isNarrow ? 24 : 90,
        top: isNarrow ? 36 : 44,
        bottom: 28,
      },
      parallelAxis: goals.map((metric) => ({
        dim: metric,
        name: metrics[metric].label,
        scale: true,
        inverse: metrics[metric].sign > 0 !== isNarrow,
        silent: true,
        nameTextStyle: text,
        axisLabel: { ...text, formatter: (value) => number(value, 3) },
        axisLine: { lineStyle: { color: colour("line") } },
        ...(isNarrow ? { nameLocation: "middle", nameGap: 20 } : {}),
      })),
      series: [
        {
          type: "parallel",
          smooth: false,
          lineStyle: { color: colour("front"), width: 2, opacity: 0.6 },
          data: front.map(item),
        },
      ],
    },
    true,
  );
}

// --- how much to believe it

const agreementCharts = [];

function showAgreement() {
  byId("agreement-section").hidden = !data.agreement.length;
  for (const { metric: name, label, networks: count, tau, error, within } of data.agreement) {
    const metric = metrics.findIndex((other) => other.name === name);
    const container = element("div", { className: "chart" });
    const note = `${label}: ${count} networks, Kendall's τ ${number(tau, 2)}, mean error ${number(error, 2)}, ${number(100 * within, 3)} % within two standard deviations (95 % would be right).`;
    byId("agreement").append(element("figure", {}, container, element("figcaption", { textContent: note })));
    agreementCharts.push({ metric, chart: chartIn(container, note) });
  }
}

function drawAgreement() {
  for (const { metric, chart } of agreementCharts) {
    const some = evaluated.filter((network) => network.predicted[metric] && network.values[metric] !== null);
    const ends = extent(some.flatMap((network) => [network.values[metric], network.predicted[metric][0]]));
    const deviations = some.flatMap((network) => {
      const [mean, std] = network.predicted[metric],
        x = network.values[metric];
      return [
        [x, mean - std],
        [x, mean + std],
        [null, null],
      ];
    });
    const chosen = some.filter((network) => network === state.chosen);
    const points = (networks) =>
      networks.map((network) => ({
        value: [network.values[metric], network.predicted[metric][0]],
        network: network.index,
      }));
    const line = (values, look) => ({ type: "line", data: values, symbol: "none", silent: true, lineStyle: look });
    chart.setOption(
      {
        animation: false,
        grid: GRID,
        tooltip: tooltip(describe),
        xAxis: xAxis(`Measured ${metrics[metric].label}`, ends),
        yAxis: yAxis("Predicted", ends),
        series: [
          line(
            [
              [ends[0], ends[0]],
              [ends[1], ends[1]],
            ],
            { color: colour("ink"), type: "dashed", width: 1 },
          ),
          { ...line(deviations, { color: colour("other"), width: 1 }), clip: true },
          { type: "scatter", symbolSize: 8, itemStyle: { color: colour("front") }, data: points(some) },
          { type: "scatter", symbolSize: 22, silent: true, itemStyle: ring("pick"), data: points(chosen) },
        ],
      },
      true,
    );
  }
}

let curveChart = null;

function drawCurves() {
  if (!data.curves.length) return;
  byId("curves").hidden = false;
  curveChart ??= chartIn(
    byId("curves"),
    "Hypervolume after each evaluation; the table beside it holds the same figures.",
  );
  const colours = ["front", "pick", "next", "other", "ink", "link"].map(colour);
  const last = Math.max(...data.curves.map(({ points }) => points.at(-1)[0]));
  const lowest = Math.min(...data.curves.map(({ points }) => points[Math.floor(points.length / 20)][1]));
  curveChart.setOption(
    {
      animation: false,
      grid: { ...GRID, top: 40 },
      color: colours,
      legend: { type: "plain", top: 0, textStyle: { color: colour("ink") } },
      tooltip: {
        ...tooltip(),
        trigger: "axis",
        formatter: (lines) =>
          element(
            "div",
            {},
            element("strong", { textContent: `Evaluation ${lines[0].data[0]}` }),
            ...lines.map(({ seriesName, data: [, share] }) =>
              element("div", { textContent: `${seriesName}: ${number(share, 3)}` }),
            ),
          ),
      },
      xAxis: xAxis("Evaluations", [0, last]),
      yAxis: yAxis(`Hypervolume / ${data.yardstick}`, [Math.max(0, lowest), 1]),
      series: data.curves.map(({ name, points }, i) => ({
        name,
        type: "line",
        symbol: "none",
        data: points,
        lineStyle: { type: ["solid", "dashed", "dotted"][i % 3], width: 2 },
      })),
    },
    true,
  );
}
