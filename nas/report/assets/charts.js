// Helpers of all charts, and the charts other than the trade-off. All use Apache ECharts.

const colours = new Map(); // of the current colour scheme

function colour(name) {
  if (!colours.has(name)) {
    colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  }
  return colours.get(name);
}

const ring = (name) => ({ color: "transparent", borderColor: colour(name), borderWidth: 2.5 });

function chartIn(container, label) {
  container.setAttribute("role", "group");
  container.setAttribute("aria-label", label);
  const chart = echarts.init(container);
  new ResizeObserver(() => chart.resize()).observe(container);
  chart.on("click", ({ data: point }) => point && point.network !== undefined && choose(networks[point.network]));
  return chart;
}

/** Width of a range; if it is too narrow for labels to differ, the magnitude of its values. */
function width([low, high]) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  return high - low > 1e-8 * size ? high - low : size || 1;
}

function axis(name, extent, options = {}) {
  const pad = 0.04 * width(extent);
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
      formatter: (value) => number(value, 10), // ticks are round numbers, so all their digits are shown
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
  const lines = goals.map((metric) => valueText(network, metric));
  return element(
    "div",
    {},
    element("strong", { textContent: network.name }),
    ...lines.map((text) => element("div", { textContent: text })),
  );
}

let parallel = null;

function drawParallel({ front }) {
  if (objectives < 3) return;
  byId("parallel-section").hidden = false;
  const isNarrow = byId("parallel").clientWidth < 600;
  byId("parallel").style.height = isNarrow ? `${8 * objectives}rem` : "";
  parallel ??= chartIn(byId("parallel"), "Parallel coordinates of the front; the table below holds the same networks.");
  byId("parallel-note").textContent =
    `One line per ${noun} of the front within the limits; ${isNarrow ? "left" : "up"} is better. ` +
    `Click a line to see its ${noun}.`;
  const text = { color: colour("soft"), backgroundColor: colour("page"), padding: [0, 2] };
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
        z: 10, // numbers stay readable where lines cross them
        name: metrics[metric].label,
        scale: true,
        inverse: metrics[metric].sign > 0 !== isNarrow,
        nameLocation: metrics[metric].sign > 0 ? "start" : "end", // the end at the top
        silent: true,
        nameTextStyle: text,
        axisLabel: { ...text, formatter: (value) => number(value, 3) },
        axisLine: { lineStyle: { color: colour("line") } },
        ...(isNarrow ? { nameLocation: "middle", nameGap: -14 } : {}),
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

// --- agreement of predictions and measurements

const agreementCharts = [];

function showAgreement() {
  byId("agreement-section").hidden = !data.agreement.length;
  for (const { metric: name, label, networks: count, tau, error, within } of data.agreement) {
    const metric = metrics.findIndex((other) => other.name === name);
    const container = element("div", { className: "chart" });
    const note = `${label}: ${counted(count)}, Kendall's τ ${number(tau, 2)}, mean error ${number(error, 2)}, ${number(100 * within, 3)} % within two standard deviations (95 % if calibrated).`;
    byId("agreement").append(element("figure", {}, container, element("figcaption", { textContent: note })));
    agreementCharts.push({ metric, chart: chartIn(container, note) });
  }
}

function drawAgreement() {
  for (const { metric, chart } of agreementCharts) {
    const some = evaluated.filter((network) => network.predicted[metric]?.[1] && network.values[metric] !== null);
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
  if (!data.curves.some(({ points }) => points.length > 1)) return;
  byId("curves").hidden = false;
  curveChart ??= chartIn(
    byId("curves"),
    "Hypervolume after each evaluation; the table beside it holds the same figures.",
  );
  const lines = ["front", "pick", "next", "other", "ink", "link"].map(colour);
  const last = Math.max(...data.curves.map(({ points }) => points.at(-1)[0]));
  const lowest = Math.min(...data.curves.map(({ points }) => points[Math.floor(points.length / 20)][1]));
  curveChart.setOption(
    {
      animation: false,
      grid: { ...GRID, top: 40 },
      color: lines,
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
        step: "end", // a hypervolume stays until an evaluation improves it
        lineStyle: { type: ["solid", "dashed", "dotted"][i % 3], width: 2 },
      })),
    },
    true,
  );
}
