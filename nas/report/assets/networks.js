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

/** Low and high value of repeated measurements, or a prediction ± one standard deviation. */
function spread(network, metric) {
  if (network.evaluation) return network.spreads[metric];
  const [mean, std] = network.predicted[metric];
  return [mean - std, mean + std];
}

function measurement(network, metric) {
  const [low, high] = network.spreads[metric] || [0, 0];
  return number(network.values[metric]) + (high > low ? ` ± ${number((high - low) / 2, 2)}` : "");
}

/** Name of a metric within a sentence: `CPU latency`, `digits accuracy`. */
function inWords(metric) {
  const words = metrics[metric].label.replace(/ \([^)]*\)$/, "");
  return /^[A-Z][a-z]/.test(words) ? words[0].toLowerCase() + words.slice(1) : words;
}

const prediction = (found) =>
  found ? number(found[0]) + (found[1] ? ` ± ${number(found[1], 2)}` : "") : "not predicted";
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

const isWithin = (network) => limits.every((limit, metric) => limit === Infinity || loss(network, metric) <= limit);

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

/** The front within the limits, and recommended networks with the reasons for them. */
function recommendations() {
  const candidates = evaluated.filter(isWithin);
  const front = frontOf(candidates.filter((network) => network.feasible));
  const picks = new Map();
  const add = (network, title) => picks.set(network, [...(picks.get(network) || []), title]);
  if (front.length && objectives > 1) add(knee(front), "Best balance (knee)");
  for (const metric of front.length ? goals : []) add(best(front, metric), `Best ${inWords(metric)}`);
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
  return { front, picks };
}
