// One run: its curves, settings, time, rollouts, checkpoints and log.

import { Chart } from "./chart.js";
import { link } from "./runs.js";
import { age, badge, copy, empty, field, get, h, latest, meter, num, options, patch, problem, seconds, svg } from "./lib.js";

const TABS = [["curves", "Curves"], ["config", "Configuration"], ["time", "Time"], ["rollouts", "Rollouts"], ["checkpoints", "Checkpoints"], ["log", "Log"]];
// What is worth a curve at first sight, beside the metric that says how it goes.
const WORTH = ["test/nll", "test/env/all/reward/total", "accuracy", "env/all/correct", "optim/entropy", "optim/kl_sample_train_v2", "learning_rate", "optim/lr", "unclipped_grad_l2:mean"];
// How curves are drawn, kept from run to run.
const settings = { smooth: 0, log: false, x: "step" };

export function open(args) {
  let id = args.path[0];
  let tab = args.path[1] ?? "curves";
  let run = null;
  let others = [];
  let over = "";
  let part = null;
  const head = h("div", { class: "stack" });
  const tabs = h("nav", { class: "tabs", "aria-label": "Parts of the run" });
  const place = h("div", { class: "stack" });

  const page = {
    title: id.replace(/^\d+\//, ""),
    nodes: [head, tabs, place],
    hear: (kind, news) => { if (kind === "runs" && (news.again || news.changed.includes(id) || (over && news.changed.includes(over)))) load(); },
    back: () => { location.hash = "#/runs"; },
    close: () => part?.close?.(),
    // Another part of the same run needs no new page.
    go: ({ path }) => { if (path[0] !== id) return false; show(path[1] ?? "curves"); return true; },
  };

  const question = latest(() => Promise.all([get("run", { run: id }), get("runs").then((all) => all.runs.filter((other) => other.id !== id))]));
  async function load() {
    try {
      const answer = await question();
      if (!answer) return;
      [run, others] = answer;
    } catch (error) {
      // The next answer draws the part anew, in place of this.
      part?.close?.();
      part = null;
      return place.replaceChildren(problem(error), h("p", {}, h("a", { href: "#/runs" }, "All runs")));
    }
    const facts = [run.model, `${run.steps} steps`, `${age(run.changed)}`].filter(Boolean).join(" · ");
    head.replaceChildren(h("div", { class: "row" }, h("a", { href: "#/runs", class: "quiet", "aria-label": "All runs" }, "Runs"), h("span", { class: "quiet" }, "/"), h("h1", { class: "cut" }, page.title), badge(run.status), h("span", { class: "grow" }), h("span", { class: "quiet" }, facts)),
      run.status === "running" && run.progress ? meter(run.progress) : "");
    label();
    if (part) part.update();
    else show(tab);
  }

  /** The names of the parts, with how much there is in them. */
  function label() {
    const having = { rollouts: run.iterations.length, checkpoints: run.checkpoints.length };
    if (!tabs.firstChild) tabs.append(...TABS.map(([key]) => h("a", { href: link(id, key) })));
    TABS.forEach(([key, title], index) => {
      const at = tabs.children[index];
      at.textContent = having[key] ? `${title} ${having[key]}` : title;
      key === tab ? at.setAttribute("aria-current", "page") : at.removeAttribute("aria-current");
    });
  }

  function show(name) {
    if (part && name === tab) return;
    tab = name;
    // The first answer shows it.
    if (!run) return;
    label();
    // On a phone the tabs are wider than the page.
    tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    part?.close?.();
    part = (PARTS[tab] ?? curves)({ id, run: () => run, others: () => others, over: () => over, choose: (other) => { over = other; part.update(); }, world: args.world });
    place.replaceChildren(...[part.nodes].flat());
    part.update();
  }

  load();
  return page;
}

const PARTS = { curves, config, time, rollouts, checkpoints, log };

/** A choice of a second run. */
function second(context, label) {
  const choice = h("select", { "aria-label": label, onchange: () => context.choose(choice.value) });
  const fill = () => {
    const list = [["", "no other run"], ...context.others().map((run) => [run.id, run.name])];
    if (list.some(([id], index) => choice.options[index]?.value !== id) || choice.options.length !== list.length) choice.replaceChildren(...options(list, context.over()));
  };
  fill();
  return { node: h("label", { class: "line" }, label, choice), fill };
}

function curves(context) {
  const other = second(context, "Compare with");
  const smooth = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: settings.smooth, "aria-label": "Smoothing", oninput: () => { settings.smooth = +smooth.value; redraw(); } });
  const log = h("input", { type: "checkbox", checked: settings.log, onchange: () => { settings.log = log.checked; redraw(); } });
  const axis = h("select", { "aria-label": "Horizontal axis", onchange: () => { settings.x = axis.value; for (const chart of charts.values()) chart.range = null; redraw(); } }, options([["step", "by step"], ["time", "by time"]], settings.x));
  const grid = h("div", { class: "grid" });
  const body = h("tbody");
  const table = h("div", { class: "card flush" }, h("div", { class: "scroll" }, h("table", { "aria-label": "Metrics" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Show"), h("th", { scope: "col" }, "Metric"), h("th", { scope: "col", class: "num phone-less" }, "First"), h("th", { scope: "col", class: "num" }, "Last"), h("th", { scope: "col" }, "Curve"))), body)));
  const charts = new Map();
  let begun = false;

  const common = () => ({ run: context.id, over: context.over(), ...settings });
  function redraw() { for (const chart of charts.values()) { chart.settings = common(); chart.load(); } }
  function toggle(name, on) {
    if (on && !charts.has(name)) { charts.set(name, new Chart(name, common(), () => { toggle(name, false); update(); })); grid.append(charts.get(name).node); }
    if (!on && charts.has(name)) { charts.get(name).close(); charts.get(name).node.remove(); charts.delete(name); }
  }
  function update() {
    const run = context.run();
    other.fill();
    if (!begun && run.metrics.length) {
      begun = true;
      const names = run.metrics.map((metric) => metric.name);
      const first = [run.main, ...WORTH].filter((name, index, all) => names.includes(name) && all.indexOf(name) === index);
      for (const name of first.slice(0, 4)) toggle(name, true);
      if (!first.length) toggle(names[0], true);
    }
    patch(body, run.metrics, (metric) => metric.name, (metric) => h("tr", {},
      h("td", {}, h("input", { type: "checkbox", checked: charts.has(metric.name), "aria-label": `Show ${metric.name}`, onchange: (event) => toggle(metric.name, event.target.checked) })),
      h("td", { class: "mono" }, metric.name), h("td", { class: "num phone-less" }, num(metric.first)), h("td", { class: "num" }, num(metric.last)), h("td", {}, svg(metric.spark))));
    for (const box of body.querySelectorAll("input")) box.checked = charts.has(box.closest("tr").dataset.key);
    table.hidden = !run.metrics.length;
    none.hidden = run.metrics.length > 0;
    redraw();
  }
  const none = empty("No metrics yet", h("p", {}, "The first step writes them; this page draws them as they come."));
  const bar = h("div", { class: "row" }, h("label", { class: "line" }, "Smoothing", smooth), h("label", { class: "line" }, log, "Logarithmic"), axis, h("span", { class: "grow" }), other.node);
  return { nodes: [bar, none, grid, table], update, close: () => { for (const chart of charts.values()) chart.close(); } };
}

/** Settings as lines: `a.b.c` and a text. */
function flat(value, name = "") {
  if (value === null || typeof value !== "object" || Object.keys(value).length === 0) return [[name, typeof value === "string" ? value : JSON.stringify(value)]];
  return Object.entries(value).flatMap(([key, inner]) => flat(inner, name ? `${name}.${key}` : key));
}

function config(context) {
  const choice = second(context, "Difference to");
  const only = h("input", { type: "checkbox", onchange: () => update() });
  const filter = h("input", { type: "search", placeholder: "Filter settings", "aria-label": "Filter settings", "data-filter": true, oninput: () => update() });
  const head = h("tr");
  const body = h("tbody");
  const note = h("div");
  const card = h("div", { class: "card flush" }, h("div", { class: "scroll" }, h("table", { "aria-label": "Configuration" }, h("thead", {}, head), body)));
  const question = latest(async (over) => over ? get("run", { run: over }).catch((error) => ({ error })) : null);
  async function update() {
    choice.fill();
    const over = context.over();
    const other = await question(over);
    if (other === undefined) return;
    const ours = new Map(flat(context.run().config ?? {}));
    if (other?.error) return note.replaceChildren(problem(other.error));
    const theirs = other && new Map(flat(other.config ?? {}));
    const names = [...new Set([...ours.keys(), ...(theirs?.keys() ?? [])])].filter((name) => name.toLowerCase().includes(filter.value.toLowerCase()));
    const differs = (name) => theirs && ours.get(name) !== theirs.get(name);
    const shown = names.filter((name) => !theirs || !only.checked || differs(name));
    head.replaceChildren(...["Setting", "This run", ...(theirs ? [over.replace(/^\d+\//, "")] : [])].map((title) => h("th", { scope: "col" }, title)));
    body.replaceChildren(...shown.map((name) => h("tr", { class: differs(name) ? "differs" : null }, h("td", { class: "mono" }, name), h("td", { class: "mono value" }, ours.get(name) ?? "–"), theirs ? h("td", { class: "mono value" }, theirs.get(name) ?? "–") : null)));
    card.hidden = !shown.length;
    note.replaceChildren(...(shown.length ? [] : [empty(ours.size ? "Nothing differs" : "This run wrote no config.json")]));
  }
  return { nodes: [h("div", { class: "row" }, filter, h("label", { class: "line" }, only, "Only what differs"), h("span", { class: "grow" }), choice.node), note, card], update };
}

function time(context) {
  const step = h("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Step", oninput: () => { chosen = steps[step.value]; draw(); } });
  const label = h("span", { class: "quiet" });
  const body = h("div", { class: "gantt" });
  const card = h("div", { class: "card" }, body);
  const note = h("div");
  let steps = [];
  let chosen;
  const question = latest((step) => get("spans", { run: context.id, step }).catch((error) => ({ error })));
  async function draw() {
    const found = await question(chosen);
    if (!found) return;
    if (found.error) return note.replaceChildren(problem(found.error));
    steps = found.steps;
    step.max = Math.max(0, steps.length - 1);
    step.value = Math.max(0, steps.indexOf(found.step));
    const spans = found.spans ?? [];
    card.hidden = !spans.length;
    note.replaceChildren(...(spans.length ? [] : [empty("No times yet", h("p", {}, "A step writes them when it ends."))]));
    const end = Math.max(...spans.map((span) => span.wall_end), 1e-9);
    label.textContent = spans.length ? `step ${found.step}, ${seconds(end)}` : "";
    const lanes = Map.groupBy(spans, (span) => span.name);
    body.replaceChildren(...[...lanes].flatMap(([name, list]) => {
      const bars = list.map((span) => { const bar = h("i"); bar.style.left = `${span.wall_start / end * 100}%`; bar.style.width = `${(span.wall_end - span.wall_start) / end * 100}%`; bar.title = `${seconds(span.wall_start)} to ${seconds(span.wall_end)}`; return bar; });
      const total = list.reduce((sum, span) => sum + span.duration, 0);
      return [h("span", { class: "mono cut", title: name }, name, list.length > 1 ? h("span", { class: "quiet" }, ` ×${list.length}`) : null), h("div", { class: "lane" }, bars), h("span", { class: "num quiet" }, seconds(total))];
    }));
  }
  return { nodes: [h("div", { class: "row" }, h("label", { class: "line" }, "Step", step), label), note, card], update: () => { if (chosen === undefined || chosen === steps.at(-1)) { chosen = undefined; draw(); } } };
}

function rollouts(context) {
  const iteration = h("select", { onchange: () => { follow = iteration.selectedIndex === iteration.options.length - 1; draw(); } });
  const label = h("select", { onchange: () => draw() });
  const sums = h("span", { class: "quiet" });
  const place = h("div", { class: "stack" });
  let follow = true;
  let listed = "";
  function update() {
    const list = context.run().iterations;
    if (!list.length) return place.replaceChildren(empty("No rollouts", h("p", {}, "Runs of reinforcement learning write theirs down, an iteration at a time.")));
    if (listed === (listed = JSON.stringify(list))) return;
    const kept = iteration.value;
    iteration.replaceChildren(...options(list.map((one) => [String(one.iteration), `iteration ${one.iteration}`]), follow ? String(list.at(-1).iteration) : kept));
    draw();
  }
  const question = latest((iteration, label) => get("rollouts", { run: context.id, iteration, label }));
  async function draw() {
    const one = context.run().iterations.find((known) => String(known.iteration) === iteration.value);
    const labels = one?.labels ?? [];
    const kept = labels.includes(label.value) ? label.value : labels[0];
    label.replaceChildren(...options(labels, kept));
    try {
      const answer = await question(one.iteration, kept);
      if (!answer) return;
      const { rollouts } = answer;
      const mean = rollouts.reduce((sum, rollout) => sum + rollout.total_reward, 0) / Math.max(1, rollouts.length);
      sums.textContent = `${rollouts.length} rollouts, mean reward ${num(mean)}`;
      const groups = Map.groupBy(rollouts, (rollout) => rollout.group_idx);
      place.replaceChildren(...[...groups].map(([number, list]) => group(number, list)));
    } catch (error) {
      place.replaceChildren(problem(error));
    }
  }
  return { nodes: [h("div", { class: "row" }, field("Iteration", iteration), field("From", label), h("span", { class: "grow" }), sums), place], update };
}

function group(number, list) {
  // What all of a group were asked stands once, above them.
  const prompts = new Set(list.map((rollout) => rollout.steps?.[0]?.logs?.prompt));
  const prompt = prompts.size === 1 ? [...prompts][0] : undefined;
  const best = Math.max(...list.map((rollout) => rollout.total_reward));
  const rows = list.map((rollout) => {
    const turns = rollout.steps ?? [];
    const logs = turns.flatMap((turn) => Object.entries(turn.logs ?? {})).filter(([name, text]) => name !== "prompt" || text !== prompt);
    const metrics = Object.entries({ ...rollout.trajectory_metrics, ...Object.assign({}, ...turns.map((turn) => turn.metrics)) });
    const kind = rollout.total_reward >= best && best > 0 ? "completed" : rollout.total_reward <= 0 ? "bad" : "warn";
    const tokens = turns.reduce((sum, turn) => sum + (turn.ac_len ?? 0), 0);
    return h("tr", {}, h("td", { class: "num slim" }, h("span", { class: `badge ${kind}` }, num(rollout.total_reward))),
      h("td", {}, logs.length ? logs.map(([name, text]) => h("div", {}, h("span", { class: "quiet" }, `${name} `), h("span", { class: "tokens" }, String(text)))) : h("span", { class: "quiet" }, "no text was logged")),
      h("td", { class: "quiet phone-less" }, metrics.map(([name, value]) => `${name} ${num(value)}`).join(" · ")), h("td", { class: "num quiet" }, `${tokens} tokens`, turns.length > 1 ? ` in ${turns.length} turns` : ""));
  });
  const tags = list[0].tags?.length ? ` · ${list[0].tags.join(", ")}` : "";
  return h("div", { class: "card flush" }, h("div", { class: "scroll" }, h("table", { "aria-label": `Group ${number}` }, h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "num slim" }, "Reward"), h("th", { scope: "col" }, `Group ${number}${tags}`, prompt ? h("div", { class: "tokens" }, prompt) : null), h("th", { class: "phone-less" }), h("th"))), h("tbody", {}, rows))));
}

function checkpoints(context) {
  const place = h("div", { class: "stack" });
  const path = (text, chat) => text ? h("div", { class: "row tight" }, h("code", { class: "cut grow", title: text }, text), h("button", { class: "small", onclick: () => copy(text) }, "Copy"), chat && context.world.hello.server ? h("a", { class: "button small", href: `#/chat?model=${encodeURIComponent(text)}` }, "Chat") : null) : h("span", { class: "quiet" }, "–");
  const update = () => {
    const list = [...context.run().checkpoints].reverse();
    if (!list.length) return place.replaceChildren(empty("No checkpoints yet", h("p", {}, "The run saves them on its way and at its end.")));
    place.replaceChildren(...list.map((one) => h("div", { class: "card" }, h("div", { class: "row" }, h("h3", {}, one.name), one.final ? h("span", { class: "badge completed" }, "final") : null, h("span", { class: "quiet" }, [one.epoch !== undefined ? `epoch ${one.epoch}` : "", one.batch !== undefined ? `batch ${one.batch}` : ""].filter(Boolean).join(", "))),
      h("dl", { class: "facts" }, h("dt", {}, "to go on from"), h("dd", {}, path(one.state_path)), h("dt", {}, "to sample from"), h("dd", {}, path(one.sampler_path, true))))));
  };
  return { nodes: [place], update };
}

function log(context) {
  const text = h("pre", { class: "log", tabindex: "0", "aria-label": "The end of the log" });
  const card = h("div", { class: "card flush" }, text);
  const note = h("div");
  const update = () => {
    const lines = context.run().log;
    card.hidden = !lines.length;
    note.replaceChildren(...(lines.length ? [] : [empty("No log", h("p", {}, "This run wrote no logs.log."))]));
    const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    if (text.textContent !== lines.join("\n")) text.textContent = lines.join("\n");
    if (atEnd) text.scrollTop = text.scrollHeight;
  };
  return { nodes: [note, card], update };
}
