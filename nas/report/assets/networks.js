"use strict";
// The networks of the page and their recommendation. Names and texts are always inserted as text, never as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const { metrics, networks, constraints, objectives } = data;
const evaluated = networks.filter((network) => network.evaluation);
const proposed = networks.filter((network) => !network.evaluation);
const noun = data.has_space ? "network" : "trial";
const limits = metrics.map(() => Infinity); // largest acceptable loss of each metric
const state = { chosen: null, all: false, sorted: null };
const goals = [...Array(objectives).keys()];
networks.forEach((network, index) => Object.assign(network, { index, name: nameOf(network) }));

function nameOf(network) {
  if (!network.evaluation) return `Proposal ${proposed.indexOf(network) + 1}`;
  if (network.place !== null && data.has_space) return `Network ${String(network.place).padStart(2, "0")}`;
  return `Trial ${network.trial}${data.searches.length > 1 ? ` of ${network.search}` : ""}`;
}

function titled(text) {
  return text[0].toUpperCase() + text.slice(1);
}

/** True if a metric is shown at once: all if there are few, else objectives, constrained metrics, params and FLOPs. */
const isMain = (metric) =>
  metrics.length <= 10 ||
  metric < objectives ||
  constraints.some(({ metric: name }) => name === metrics[metric].name) ||
  ["params", "flops"].includes(metrics[metric].name);

const counted = (count, what = noun) => `${count} ${what}${count === 1 ? "" : "s"}`;

// --- small helpers

const byId = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function number(value, digits = 5) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 1e5 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

/** A value with as many digits as its error allows: two of the error's. Without an error, four, and counts in full. */
function rounded(value, error = 0) {
  if (value === null || value === undefined || !error) return number(value, 4);
  const decimals = Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(error))));
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

/** A value and its error with the same decimals: `0.0712 ± 0.0031`. */
const withError = (value, error) => rounded(value, error) + (error ? ` ± ${rounded(error, error)}` : "");

/** Low and high value of repeated measurements, or a prediction ± one standard deviation. */
function spread(network, metric) {
  if (network.evaluation) return network.spreads[metric];
  const [mean, std] = network.predicted[metric];
  return [mean - std, mean + std];
}

function measurement(network, metric) {
  const [low, high] = network.spreads[metric] || [0, 0];
  return withError(network.values[metric], (high - low) / 2);
}

/** Name of a metric within a sentence: `CPU latency`, `digits accuracy`, `OpenVINO latency`. */
function inWords(metric) {
  const words = metrics[metric].label.replace(/ \([^)]*\)$/, "");
  return /^[A-Z][a-z]+\b/.test(words) ? words[0].toLowerCase() + words.slice(1) : words;
}

const withArrow = (metric) => `${metrics[metric].label} ${metrics[metric].sign > 0 ? "↓" : "↑"}`;
const prediction = (predicted) => (predicted ? withError(...predicted) : "not predicted");
const valueText = (network, metric) =>
  `${metrics[metric].label}: ${network.evaluation ? measurement(network, metric) : prediction(network.predicted[metric])}`;
const bound = (metric, value) => `${metrics[metric].label} ${metrics[metric].sign > 0 ? "≤" : "≥"} ${number(value)}`;
/** Constraints that a network violates, and by how much, in words. */
const broken = (network) =>
  constraints.flatMap(({ metric: name, sign, bound: value }) => {
    const metric = metrics.findIndex((other) => other.name === name);
    const excess = metric < 0 || network.values[metric] === null ? 0 : sign * (network.values[metric] - value);
    return excess > 0 ? [`breaks ${inWords(metric)} ${sign > 0 ? "≤" : "≥"} ${number(value)} by ${number(excess)}`] : [];
  });
const loss = (network, metric) =>
  network.values[metric] === null ? Infinity : metrics[metric].sign * network.values[metric];

// --- which networks

const breaks = (network, metric) => limits[metric] !== Infinity && loss(network, metric) > limits[metric];
const isWithin = (network) => limits.every((_, metric) => !breaks(network, metric));
/** The reader's limits that a network breaks, in words. */
const beyond = (network) =>
  metrics.flatMap((metric, index) => (breaks(network, index) ? [bound(index, metric.sign * limits[index])] : []));

/** The non-dominated candidates, sorted by the first objective from the best on. */
function frontOf(candidates) {
  const losses = (network) => goals.map((metric) => loss(network, metric));
  const sorted = candidates.map((network) => [network, losses(network)]);
  sorted.sort(([, a], [, b]) => a.find((_, i) => a[i] !== b[i]) - b.find((_, i) => a[i] !== b[i]) || 0);
  const front = [];
  for (const [network, own] of sorted) {
    const dominates = ([, other]) =>
      other.every((value, i) => value <= own[i]) && other.some((value, i) => value < own[i]);
    if (!front.some(dominates)) front.push([network, own]);
  }
  return front.map(([network]) => network);
}

/** The network of a front with the smallest sum of scaled losses, except the worst in any objective. */
function knee(front) {
  const scaled = goals.map((metric) => {
    const losses = front.map((network) => loss(network, metric));
    const best = Math.min(...losses);
    return losses.map((value) => (value - best) / (Math.max(...losses) - best || 1));
  });
  const sums = front.map((_, i) => scaled.reduce((sum, losses) => sum + losses[i], 0));
  const balanced = front.map((_, i) => i).filter((i) => scaled.every((losses) => losses[i] < 1));
  const choice = balanced.length ? balanced : [...front.keys()];
  return front[choice.reduce((a, b) => (sums[b] < sums[a] ? b : a))];
}

const best = (front, metric) => front.reduce((a, b) => (loss(b, metric) < loss(a, metric) ? b : a));

// --- what a buyer asks: who is nearly as good for less, and what does half the cost cost?

/** The objective that costs trainings, and the others; without such an objective, or without others, null. */
const quality = goals.find((metric) => metrics[metric].price === "trained") ?? null;
const costs = quality === null ? [] : goals.filter((metric) => metric !== quality);

const isPercent = (metric) => metrics[metric].unit === "%";
/** What still counts as nearly the best: one point of a percentage, else a fiftieth of the value. */
const slack = (metric, value) => (isPercent(metric) ? 1 : Math.abs(value) / 50);
const slackText = (metric) => (isPercent(metric) ? "1 point" : "2 %");

/** The largest loss of a network that somebody would ship: at most half as many errors again as the best one. */
function floorLoss(front) {
  if (!costs.length) return Infinity;
  const losses = front.map((network) => loss(network, quality));
  const least = Math.min(...losses);
  const errors = metrics[quality].sign > 0 ? least : 100 + least;
  if (isPercent(quality)) return least + Math.max(0, errors) / 2;
  return least + (Math.max(...losses) - least) / 4;
}

/** A difference of losses in words: `1.3 points`, or in the metric's unit. */
const difference = (metric, value) =>
  `${number(value, 2)} ${isPercent(metric) ? "points" : metrics[metric].unit}`.trim();

/** Names of networks that a buyer would ask for, with the networks: cheap ones near the best, and half the cost. */
function bargains(front) {
  if (!costs.length) return [];
  const top = best(front, quality);
  const value = top.values[quality];
  const near = front.filter((network) => loss(network, quality) <= loss(top, quality) + slack(quality, value));
  return costs.flatMap((cost) => {
    const name = inWords(cost);
    const isLess = metrics[cost].sign > 0; // else more is better, as of a throughput
    const bargain = [[best(near, cost), `${isLess ? "Least" : "Most"} ${name} within ${slackText(quality)} of the best`]];
    const target = isLess ? top.values[cost] / 2 : 2 * top.values[cost];
    const half = front.filter((network) => loss(network, cost) <= metrics[cost].sign * target);
    if (half.length && top.values[cost] > 0) {
      const one = best(half, quality);
      const lost = difference(quality, loss(one, quality) - loss(top, quality));
      bargain.push([one, `${isLess ? "Half" : "Twice"} the ${name} costs ${lost}`]);
    }
    return bargain;
  });
}

/** The front within the limits, and recommended networks with the reasons for them. */
function recommendations() {
  const candidates = evaluated.filter(isWithin);
  const front = frontOf(candidates.filter((network) => network.feasible));
  const picks = new Map();
  const add = (network, title) => picks.set(network, [...(picks.get(network) || []), title]);
  const floor = front.length ? floorLoss(front) : Infinity;
  const shippable = front.filter((network) => !costs.length || loss(network, quality) <= floor);
  if (front.length && objectives > 1) add(knee(shippable), "Best balance (knee)");
  for (const metric of front.length ? (costs.length ? [quality] : goals) : []) {
    add(best(front, metric), `Best ${inWords(metric)}`);
  }
  for (const [network, title] of front.length > 1 ? bargains(front) : []) add(network, title);
  for (const { metric: name, sign, bound: value } of constraints) {
    const bounded = metrics.findIndex((metric) => metric.name === name);
    const goal = goals.find((metric) => metric !== bounded);
    const keep = candidates.filter(
      (network) => sign * network.values[bounded] <= sign * value && network.values[bounded] !== null,
    );
    if (keep.length && goal !== undefined) {
      const title = `Best ${inWords(goal)} with ${inWords(bounded)} ${sign > 0 ? "≤" : "≥"} ${number(value)}`;
      add(best(frontOf(keep), goal), title);
    }
  }
  return { front, picks, floor };
}
