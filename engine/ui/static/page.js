// The page: listens to the job, keeps what it has heard, and has each part draw it.

import { Checkpoints } from "./checkpoints.js";
import { byId, h, keyed, say, set } from "./elements.js";
import { clock, count, plural, seconds, time } from "./format.js";
import { Graph } from "./graph.js";
import { prepareOrders, rescale, token } from "./orders.js";
import { TaskPanel } from "./task.js";
import { Timelines } from "./timelines.js";

const EVENTS_MAX = 500;
const POINTS_MAX = 2000;
const ICONS = { ok: "✓", note: "!", wrong: "✕" };
const STALE_MS = 5000;

const heard = { facts: null, look: null, points: [], events: [], ended: false, recorded: false };
let heardAt = Date.now();
let selected = null;
let chosen = false;

const graph = new Graph(byId("graph"), select);
const task = new TaskPanel(byId("task"));
const checkpoints = new Checkpoints(byId("checkpoints"), byId("checkpoint"));
const timelines = new Timelines(byId("times"), byId("span"), byId("times-now"));

function select(index) {
  selected = index;
  chosen = true;
  draw();
}

function listen() {
  const source = new EventSource("/api/events");
  source.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (message.reset) Object.assign(heard, { points: [], events: [] });
    heard.points = [...heard.points, ...message.points].slice(-POINTS_MAX);
    heard.events = [...heard.events, ...message.events].slice(-EVENTS_MAX);
    if (message.reset && heard.look) loadFacts();
    Object.assign(heard, { look: message.look ?? heard.look, ended: message.ended,
      recorded: message.recorded });
    heardAt = Date.now();
    // A recording never changes. A job that has ended may be started again at this address.
    if (message.recorded) source.close();
    draw();
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED && !heard.recorded) setTimeout(listen, 2000);
    drawLink();
  };
}

async function loadFacts() {
  const response = await fetch("/api/job").catch(() => null);
  if (response?.ok) heard.facts = await response.json();
  drawFacts();
  draw();
}

function draw() {
  drawLink();
  const { look } = heard;
  if (!look) return;
  drawHead(look);
  drawFinding(look);
  if (!chosen || selected >= look.tasks.length) selected = culprit(look);
  graph.update(look, selected);
  if (look.tasks[selected]) task.update(look.tasks[selected], heard.facts);
  checkpoints.update(look);
  timelines.update(heard.points, heard.events, look.checkpoints, look.tasks);
  drawEvents();
  drawSinks(look);
}

/** The task that the finding names, else the busiest. */
function culprit(look) {
  const named = look.tasks.findIndex((one) => one.name === look.finding.task);
  if (named >= 0) return named;
  const busiest = Math.max(...look.tasks.map((one) => one.busy));
  return Math.max(0, look.tasks.findIndex((one) => one.busy === busiest));
}

function drawHead(look) {
  say(byId("job"), look.job);
  document.title = `${ICONS[look.finding.severity] ?? ""} ${look.job} – headrace`;
  say(byId("phase"), look.phase);
  set(byId("phase"), "class", `pill ${look.phase}`);
  say(byId("place"), `${look.runner}, parallelism ${look.parallelism}`);
}

function drawFinding(look) {
  const { severity, sentence, parallelism } = look.finding;
  set(byId("finding"), "class", `card finding ${severity}`);
  say(byId("finding-icon"), ICONS[severity] ?? "");
  say(byId("sentence"), sentence);
  say(byId("standing"), standing(look));
  const advice = byId("advice");
  const can = parallelism && token() && !heard.recorded && !heard.ended;
  advice.hidden = !can;
  if (can) {
    say(advice, `Rescale to ${parallelism}`);
    advice.onclick = () => rescale(parallelism);
  }
}

function standing(look) {
  const parts = [`started ${clock(look.started_ms)}`, `attempt ${look.attempt}`];
  if (look.restarts) {
    const bad = heard.events.findLast((event) =>
      ["worker_lost", "attempt_failed"].includes(event.kind));
    parts.push(plural(look.restarts, "restart") +
      (bad ? ` (${clock(bad.at_ms)} ${bad.text.slice(0, 80)})` : ""));
  }
  const last = look.checkpoints.findLast((item) => item.outcome === "completed");
  if (last) parts.push(`chk-${last.checkpoint} ${time(last.duration_ms)} ${last.mode}`);
  for (const sink of look.sinks.slice(0, 3)) {
    const behind = sink.behind_s === null ? "" : `, ${seconds(sink.behind_s)} behind`;
    parts.push(`${sink.name}: ${sink.delivery.replace("-", " ")}${behind}`);
  }
  return parts.join(" · ");
}

function drawLink() {
  const silent = !heard.recorded && !heard.ended && Date.now() - heardAt > STALE_MS;
  const [text, kind] = heard.recorded ? ["recorded", "recorded"]
    : heard.ended ? ["ended", "recorded"]
      : silent ? ["no answer", "lost"]
        : heard.look ? ["live", "live"] : ["connecting", "lost"];
  say(byId("link"), text);
  set(byId("link"), "class", `link ${kind}`);
  const banner = byId("banner");
  const at = heard.look ? clock(heard.look.at_ms) : "";
  const told = heard.recorded ? `This job does not run here. Recorded at ${at}.`
    : heard.ended ? `The job has ended; this is how it stood at ${at}. ` +
        "`headrace ui DIRECTORY` shows it again from its checkpoint directory."
      : silent ? `The job's process does not answer; this is how it stood at ${at}. Trying again.`
        : "";
  say(banner, told);
  banner.hidden = !told;
  document.body.classList.toggle("stale", silent);
  const orders = byId("orders-open");
  orders.hidden = !token() || heard.recorded || heard.ended;
}

function drawEvents() {
  keyed(byId("events"), [...heard.events].reverse().slice(0, 200), (event) => event.number,
    (event) => h("li", { class: event.kind },
      h("time", { datetime: new Date(event.at_ms).toISOString() }, clock(event.at_ms)),
      h("b", null, event.kind.replaceAll("_", " ")), h("span", null, event.text)),
    () => {});
}

function drawSinks(look) {
  const table = byId("sinks");
  keyed(table, look.sinks, (sink) => sink.name,
    (sink) => h("dl", { class: "sink" }, h("dt", null, sink.name), h("dd")),
    (row, sink) => {
      const parts = [sink.delivery, `${count(sink.records)} records`];
      if (sink.last_commit_ms !== null) {
        const number = sink.last_commit_checkpoint;
        parts.push(`last commit ${clock(sink.last_commit_ms)}` +
          (number === null ? "" : ` (chk-${number})`));
      } else parts.push("nothing committed yet");
      if (sink.open_transactions !== null) {
        parts.push(plural(sink.open_transactions, "open transaction"));
      }
      if (sink.behind_s !== null) parts.push(`${seconds(sink.behind_s)} behind`);
      say(row.lastChild, parts.join(" · "));
    });
  say(byId("workers"), look.workers.map((worker) => {
    const place = worker.host ? ` on ${worker.host}` : "";
    return `worker ${worker.worker}${worker.pid ? ` (pid ${worker.pid}${place})` : ""}`;
  }).join(", "));
}

function drawFacts() {
  const { facts } = heard;
  if (!facts) return;
  const settings = Object.entries(facts.settings).map(([key, value]) =>
    h("tr", null, h("th", { scope: "row" }, key), h("td", null, value)));
  const operators = facts.tasks.flatMap((one) => one.operators.map((operator) =>
    h("tr", null, h("th", { scope: "row" }, operator.name), h("td", null, operator.built_at),
      h("td", null, operator.stateful ? "keeps state" : ""))));
  const edges = facts.edges.map((edge) => h("tr", null, h("th", { scope: "row" }, edge.key),
    h("td", null, edge.partitioner), h("td", null, edge.columns.join(", "))));
  const part = (title, rows) => h("div", null, h("h3", null, title),
    h("div", { class: "scroll" }, h("table", null, h("tbody", null, rows))));
  byId("facts-content").replaceChildren(part("Operators", operators), part("Edges", edges),
    part("Settings", settings));
}

function themes() {
  const wanted = () => localStorage.getItem("headrace-theme") ?? "system";
  const show = () => {
    const name = wanted();
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    set(byId("theme"), "aria-label", `Colours: ${name}`);
  };
  byId("theme").onclick = () => {
    const order = ["system", "light", "dark"];
    localStorage.setItem("headrace-theme", order[(order.indexOf(wanted()) + 1) % 3]);
    show();
  };
  show();
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, dialog[open]")) return;
  const go = {
    g: () => graph.focus(),
    c: () => checkpoints.focus(),
    t: () => byId("times").querySelector("figure").focus(),
    e: () => byId("events").focus(),
    Escape: () => (checkpoints.selected === null ? byId("sentence").focus() : checkpoints.close()),
  }[event.key];
  if (!go) return;
  go();
  event.preventDefault();
}

token();
themes();
prepareOrders(byId("orders"));
byId("orders-open").onclick = () => byId("orders").showModal();
document.addEventListener("keydown", keys);
setInterval(drawLink, 1000);
loadFacts();
listen();
