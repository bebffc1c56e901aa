// A JSONL file as a model would be trained on it.

import { count, empty, field, h, latest, num, options, problem, send } from "./lib.js";

const MOST = 32 << 20;
const PAGE = 10;

export function open({ world }) {
  const file = h("input", { type: "file", accept: ".jsonl,.json,.txt", "aria-label": "A JSONL file", onchange: () => { if (file.files[0]) take(file.files[0]); } });
  const paste = h("textarea", { rows: 3, class: "mono", placeholder: '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}', "aria-label": "Lines of JSON", "data-filter": true, onchange: () => { if (paste.value.trim()) { text = paste.value; name = "pasted lines"; from = 0; load(); } } });
  const renderer = h("select", { onchange: () => load() }, options([["", `that of ${world.hello.model}`], ...world.hello.renderers]));
  const trainOn = h("select", { onchange: () => load() }, options(world.hello.train_on.map((one) => [one, one.replaceAll("_", " ")]), "all_assistant_messages"));
  const drop = h("div", { class: "drop", ondragover: (event) => { event.preventDefault(); drop.dataset.over = ""; }, ondragleave: () => delete drop.dataset.over, ondrop: (event) => { event.preventDefault(); delete drop.dataset.over; if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]); } }, h("p", {}, "Drop a JSONL file here, or ", file), h("p", { class: "quiet" }, "It is read in this page and shown as the model reads it; nothing is kept."));
  const place = h("div", { class: "stack" });
  let text = sessionStorage.getItem("tinker-data") ?? "";
  let name = text ? "saved conversations" : "";
  let from = 0;
  sessionStorage.removeItem("tinker-data");

  async function take(chosen) {
    if (chosen.size > MOST) return place.replaceChildren(problem({ message: `${chosen.name} is larger than 32 MiB.`, advice: "Take a part of it, such as its first lines; 'tinker data check' reads files of any size." }));
    text = await chosen.text();
    name = chosen.name;
    from = 0;
    load();
  }

  const question = latest((wanted) => send("POST", "data", wanted));
  async function load() {
    if (!text.trim()) return place.replaceChildren(empty("No data yet", h("p", {}, "Each line is a conversation, a prompt with its completion, or a text:"), h("pre", {}, '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}\n{"prompt": "…", "completion": "…"}\n{"text": "…"}')));
    try {
      const report = await question({ text, renderer: renderer.value || null, train_on: trainOn.value, from, count: PAGE });
      if (report) draw(report);
    } catch (error) {
      place.replaceChildren(problem(error));
    }
  }

  function draw(report) {
    const share = report.tokens ? ` (${Math.round(report.loss_tokens / report.tokens * 100)} %)` : "";
    const tile = (value, label) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, label));
    const most = Math.max(...report.histogram.map(([, many]) => many), 1);
    const bars = report.histogram.map(([end, many]) => { const bar = h("i"); bar.style.height = `${many / most * 88}px`; return h("div", { title: `${many} of ${end / 2 + 1} to ${end} tokens` }, count(many), bar, h("span", {}, `≤${count(end)}`)); });
    const pager = report.examples > PAGE ? h("div", { class: "row between" }, h("button", { disabled: from === 0, onclick: () => { from = Math.max(0, from - PAGE); load(); } }, "Previous"), h("span", { class: "quiet" }, `${from + 1} to ${Math.min(from + PAGE, report.examples)} of ${count(report.examples)}`), h("button", { disabled: from + PAGE >= report.examples, onclick: () => { from += PAGE; load(); } }, "Next")) : null;
    place.replaceChildren(...[
      report.note ? h("p", { class: "quiet" }, report.note) : null,
      h("div", { class: "tiles" }, tile(count(report.examples), `examples in ${name}`), tile(count(report.tokens), "tokens"), tile(`${count(report.loss_tokens)}${share}`, "trained on"), tile(num(report.tokens / Math.max(1, report.examples)), "tokens each"), tile(count(report.longest), "tokens in the longest"), report.refused ? tile(count(report.refused), "lines refused") : null),
      report.problems.length ? h("div", { class: "problem", role: "alert" }, h("p", {}, `${report.refused} of ${report.lines} lines cannot be trained on. Mend them, or leave them out:`), report.problems.map((one) => h("p", {}, `line ${one.line}: ${one.problem}`))) : null,
      report.examples ? h("div", { class: "card" }, h("h2", {}, "Lengths"), h("div", { class: "histogram", role: "img", "aria-label": `Examples by length: ${report.histogram.map(([end, many]) => `${many} up to ${end} tokens`).join(", ")}` }, bars)) : null,
      report.shown.map(example), pager].flat().filter(Boolean));
  }

  load();
  return {
    title: "Data",
    nodes: [h("div", { class: "row" }, h("h1", {}, "Data"), h("span", { class: "grow" }), h("span", { class: "tokens" }, h("span", { class: "w" }, "trained on"), " ", h("span", { class: "z" }, "read only"))), h("div", { class: "split" }, drop, h("div", { class: "stack" }, field("Lines of JSON", paste), h("div", { class: "row" }, field("Layout", renderer), field("Train on", trainOn)))), place],
  };
}

function example(one) {
  // Neighbours of one weight are one element: a long file stays light.
  const runs = [];
  for (const [text, weight] of one.pieces) {
    const special = /^<\|?[^<>\s]+\|?>$/.test(text);
    const kind = `${weight > 0 ? "w" : "z"}${special ? " special" : ""}`;
    if (runs.at(-1)?.kind === kind && runs.at(-1).weight === weight) runs.at(-1).text += text;
    else runs.push({ kind, weight, text });
  }
  return h("div", { class: "card" }, h("div", { class: "row between quiet" }, h("span", {}, `line ${one.line}`), h("span", {}, `${count(one.tokens)} tokens, ${count(one.loss_tokens)} trained on`)), h("div", { class: "tokens" }, runs.map((run) => { const piece = h("span", { class: run.kind, title: `weight ${num(run.weight)}` }, run.text); piece.style.setProperty("--w", Math.min(1, 0.25 + 0.75 * run.weight)); return piece; }), one.cut ? h("span", { class: "quiet" }, " …") : null));
}
