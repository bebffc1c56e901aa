// The table of runs.

import { age, badge, empty, get, h, latest, meter, num, patch, problem, svg, training } from "./lib.js";

const COLUMNS = [["name", "Run"], ["status", "Status"], ["kind", "Kind", "phone-less"], ["model", "Model", "phone-less"], ["steps", "Steps", "num phone-less"], ["value", "Last", "num"], ["spark", "Curve"], ["changed", "Age", "num phone-less"]];
const KINDS = { sl: "supervised", dpo: "preferences", rl: "reinforcement", other: "other" };
// Kept while the page is open, so that going back finds the table as it was left.
const view = { sort: "changed", down: true, filter: "" };

export function open({ world }) {
  const body = h("tbody");
  const note = h("div");
  const filter = h("input", { type: "search", placeholder: "Filter by name, model, status…", "aria-label": "Filter runs", "data-filter": true, value: view.filter, oninput: () => { view.filter = filter.value; draw(); } });
  const total = h("span", { class: "quiet" });
  const heads = COLUMNS.map(([name, title, kind]) => h("th", { class: kind, scope: "col" }, name === "spark" ? title : h("button", { onclick: () => sort(name) }, title)));
  const table = h("div", { class: "card flush", hidden: true }, h("div", { class: "scroll" }, h("table", { "aria-label": "Runs" }, h("thead", {}, h("tr", {}, heads)), body)));
  let runs = null;
  let folders = [];

  const sort = (name) => { [view.down, view.sort] = [view.sort === name ? !view.down : name !== "name" && name !== "model", name]; draw(); };

  const question = latest(() => get("runs"));
  async function load() {
    try {
      const answer = await question();
      if (!answer) return;
      ({ runs, folders } = answer);
      draw();
    } catch (error) {
      note.replaceChildren(problem(error));
    }
  }

  function draw() {
    if (!runs) return;
    const words = view.filter.toLowerCase().split(/\s+/);
    const text = (run) => `${run.name} ${run.model} ${run.status} ${run.kind} ${KINDS[run.kind]}`.toLowerCase();
    const kept = runs.filter((run) => words.every((word) => text(run).includes(word)));
    const by = (run) => run[view.sort] ?? (view.sort === "name" ? "" : -Infinity);
    kept.sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : a.id < b.id ? -1 : 1) * (view.down ? -1 : 1));
    patch(body, kept, (run) => run.id, row);
    heads.forEach((head, index) => head.setAttribute("aria-sort", COLUMNS[index][0] === view.sort ? (view.down ? "descending" : "ascending") : "none"));
    total.textContent = kept.length === runs.length ? `${runs.length}` : `${kept.length} of ${runs.length}`;
    table.hidden = kept.length === 0;
    note.replaceChildren(...(kept.length ? [] : [runs.length ? empty("No run fits the filter", h("button", { onclick: () => { filter.value = view.filter = ""; draw(); } }, "Show all")) : nothing()]));
  }

  function nothing() {
    const where = folders.length ? [h("p", {}, "Looked in ", folders.map((folder, index) => [index ? ", " : "", h("code", {}, folder)]), ". A run appears here as soon as it writes its first file:"), h("pre", {}, training(world.hello, `${folders[0]}/chats`))]
      : [h("p", {}, "The server was started without a folder of runs. Start it with one:"), h("pre", {}, "tinker serve --runs FOLDER")];
    return empty("No runs yet", where);
  }

  load();
  const clock = setInterval(() => { for (const cell of body.querySelectorAll("[data-age]")) cell.textContent = age(+cell.dataset.age); }, 5000);
  return {
    title: "Runs",
    nodes: [h("div", { class: "row" }, h("h1", {}, "Runs"), total, h("span", { class: "grow" }), filter), note, table],
    hear: (kind) => { if (kind === "runs") load(); },
    close: () => clearInterval(clock),
  };
}

export const link = (id, ...rest) => `#/run/${[id, ...rest].map(encodeURIComponent).join("/")}`;

function row(run) {
  const metric = run.metric?.replace("env/all/reward/total", "reward").replace("train_mean_nll", "loss") ?? "";
  return h("tr", {},
    h("td", { class: "name" }, h("a", { href: link(run.id), "data-row": true }, run.name)),
    h("td", {}, h("div", { class: "stack tight" }, h("div", {}, badge(run.status)), run.status === "running" && run.progress ? meter(run.progress) : null)),
    h("td", { class: "phone-less" }, KINDS[run.kind]),
    h("td", { class: "mono quiet phone-less" }, run.model ?? "–"),
    h("td", { class: "num phone-less" }, String(run.steps)),
    h("td", { class: "num" }, h("b", {}, num(run.value)), h("div", { class: "quiet", title: run.metric }, metric)),
    h("td", {}, svg(run.spark)),
    h("td", { class: "num quiet phone-less", "data-age": run.changed }, age(run.changed)));
}
