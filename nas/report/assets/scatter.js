// The trade-off: evaluated networks, the front, recommendations and proposals.

/**
 * Axes [across, up] of the charts, as in the figures: each other objective against the first one. A single objective
 * is drawn against evaluations, for which null stands.
 */
const pairs = objectives > 1 ? goals.slice(1).map((metric) => [0, metric]) : [[null, 0]];
const scatters = [];

/** True if a network has a position in the chart: it was evaluated, or both metrics were predicted. */
const hasPlace = (network, axes) =>
  Boolean(network.evaluation || axes.every((metric) => metric !== null && network.predicted[metric]));

function place(network, axes) {
  if (!network.evaluation) return axes.map((metric) => network.predicted[metric][0]);
  return axes.map((metric) => (metric === null ? network.evaluation : network.values[metric]));
}

function showScatters() {
  byId("halves").classList.toggle("several", pairs.length > 1); // charts side by side, the network below
  for (const axes of pairs) {
    const names = axes.map((metric) => (metric === null ? "Evaluation" : withArrow(metric)));
    const container = element("div", { className: "chart", tabIndex: 0 });
    const label = `Chart of ${names[1]} against ${names[0]}. Arrow keys move along the front, plus and minus zoom; the table below has the same networks.`;
    const chart = chartIn(container, label);
    const button = (text, title, onclick) =>
      element("button", { type: "button", textContent: text, title, "aria-label": title, onclick });
    const box = element("div");
    byId("charts").append(box);
    box.append(
      container,
      element(
        "p",
        { className: "tools" },
        button("+", "Zoom in", () => zoom(scatter, 0.6)),
        button("−", "Zoom out", () => zoom(scatter, 1 / 0.6)),
        button("Front", "Zoom to the front", () => zoomToFront(scatter)),
        button("All", "Show all networks", () => zoom(scatter, Infinity)),
        ...(scatters.length ? [] : [element("small", { textContent: "Drag to move, pinch or Ctrl + wheel to zoom." })]),
      ),
    );
    const scatter = { chart, axes, names, window: null };
    chart.resize();
    container.onkeydown = (event) => walk(event, scatter);
    scatters.push(scatter);
  }
}

function drawScatter(scatter, { front, picks }) {
  const { chart, axes, names } = scatter;
  const isFront = new Set(front);
  const shown = proposed.filter((network) => hasPlace(network, axes));
  const points = (some) => some.map((network) => ({ value: place(network, axes), network: network.index }));
  const series = (id, some, options) => ({ id, type: "scatter", data: points(some), ...options });
  const all = [...evaluated, ...shown].map((network) => place(network, axes));
  const truth = axes[0] === null ? [] : data.true_front.map((values) => axes.map((metric) => values[metric]));
  const extents = [0, 1].map((i) => extent([...all, ...truth].map((point) => point[i])));
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
      line("truth", objectives === 2 ? staircase(truth, axes) : [], {
        lineStyle: { color: colour("ink"), type: "dashed", width: 1 },
      }),
      line(
        "steps",
        objectives === 2
          ? staircase(
              front.map((network) => place(network, axes)),
              axes,
            )
          : objectives === 1
            ? bestSoFar()
            : [],
        { lineStyle: { color: colour("front"), width: 1.5 } },
      ),
      line("spread", spreads([...front, ...shown], axes), { lineStyle: { color: colour("soft"), width: 1 } }),
      series("next", shown, { symbol: "diamond", symbolSize: 11, itemStyle: ring("next") }),
      series("front", front, { symbolSize: 10, z: 3, itemStyle: { color: colour("front") } }),
      series("picks", [...picks.keys()], {
        symbol: "diamond",
        symbolSize: 16,
        z: 4,
        itemStyle: { color: colour("pick") },
      }),
      series("chosen", state.chosen && hasPlace(state.chosen, axes) ? [state.chosen] : [], {
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

/** Corners of the border of the region that a front of two objectives dominates. */
function staircase(points, [across]) {
  const sorted = [...points].sort((a, b) => metrics[across].sign * (a[0] - b[0]));
  return sorted.flatMap((point, i) => (i ? [[point[0], sorted[i - 1][1]], point] : [point]));
}

/** The best feasible value of a single objective after each evaluation, as corners of steps. */
function bestSoFar() {
  const rising = [...evaluated].filter((network) => network.feasible).sort((a, b) => a.evaluation - b.evaluation);
  const records = rising.filter((network, i) => !i || rising.slice(0, i).every((other) => loss(network, 0) < loss(other, 0)));
  const points = records.map((network) => [network.evaluation, network.values[0]]);
  const last = Math.max(...evaluated.map((network) => network.evaluation));
  const steps = points.flatMap((point, i) => (i ? [[point[0], points[i - 1][1]], point] : [point]));
  return points.length ? [...steps, [last, points.at(-1)[1]]] : [];
}

/** Lines over the spread of each coordinate, with gaps between them. */
function spreads(some, axes) {
  const gap = [null, null];
  return some.flatMap((network) => {
    const [a, b] = place(network, axes);
    const [across, up] = axes.map((metric) => (metric === null ? null : spread(network, metric)));
    return [...(across ? [[across[0], b], [across[1], b], gap] : []), ...(up ? [[a, up[0]], [a, up[1]], gap] : [])];
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
  const shown = (front.length > 1 ? front : evaluated).map((network) => place(network, scatter.axes));
  zoomTo(
    scatter,
    [0, 1].map((i) => {
      const [low, high] = scatter.axes[0] === null ? scatter.extents[i] : extent(shown.map((point) => point[i]));
      const margin = 0.12 * width([low, high]);
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
        margin = 0.04 * width([lowest, highest]);
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
  const along = recommendations().front.sort((a, b) => place(a, scatter.axes)[0] - place(b, scatter.axes)[0]);
  const at = along.indexOf(state.chosen);
  const next = along[at < 0 ? 0 : Math.min(along.length - 1, Math.max(0, at + step))];
  if (next) choose(next);
}
