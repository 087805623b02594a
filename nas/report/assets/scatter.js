// The trade-off: evaluated networks, the front, recommendations and proposals.

/** Scatter charts of the first objective against each other one, or of a single objective against evaluations. */
const pairs = objectives > 1 ? goals.slice(1) : [null];
const scatters = [];

/** True if a network has a position in the chart: it was evaluated, or both metrics were predicted. */
const hasPlace = (network, x) =>
  Boolean(network.evaluation || (x !== null && network.predicted[0] && network.predicted[x]));

function place(network, x) {
  if (!network.evaluation) return [network.predicted[x][0], network.predicted[0][0]];
  return [x === null ? network.evaluation : network.values[x], network.values[0]];
}

function showScatters() {
  for (const x of pairs) {
    const names = [x === null ? "Evaluation" : metrics[x].label, metrics[0].label];
    const container = element("div", { className: "chart", tabIndex: 0 });
    const label = `Chart of ${names[1]} against ${names[0]}. Arrow keys move along the front, plus and minus zoom; the table below has the same networks.`;
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
        ...(scatters.length ? [] : [element("small", { textContent: "Drag to move, pinch or Ctrl + wheel to zoom." })]),
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
  const shown = proposed.filter((network) => hasPlace(network, x));
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
      series("chosen", state.chosen && hasPlace(state.chosen, x) ? [state.chosen] : [], {
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
function staircase(points, x) {
  const sorted = [...points].sort((a, b) => metrics[x].sign * (a[0] - b[0]));
  return sorted.flatMap((point, i) => (i ? [[point[0], sorted[i - 1][1]], point] : [point]));
}

/** Lines over the spread of each coordinate, with gaps between them. */
function spreads(some, x) {
  const gap = [null, null];
  return some.flatMap((network) => {
    const [a, b] = place(network, x);
    const [across, up] = [x === null ? null : spread(network, x), spread(network, 0)];
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
  const shown = (front.length > 1 ? front : evaluated).map((network) => place(network, scatter.x));
  zoomTo(
    scatter,
    [0, 1].map((i) => {
      const [low, high] = scatter.x === null ? scatter.extents[i] : extent(shown.map((point) => point[i]));
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
  const along = recommendations().front.sort((a, b) => place(a, scatter.x)[0] - place(b, scatter.x)[0]);
  const at = along.indexOf(state.chosen);
  const next = along[at < 0 ? 0 : Math.min(along.length - 1, Math.max(0, at + step))];
  if (next) choose(next);
}
