// Talking with one checkpoint, or with two side by side.

import { empty, events, field, get, h, meter, num, options, problem, save, toast } from "./lib.js";

const SAVED = "tinker-conversations";
const NUMBERS = [["n", "Samples", 1, { min: 1, max: 8, step: 1 }], ["max_tokens", "Most tokens", 128, { min: 1, step: 1 }], ["temperature", "Temperature", 0.7, { min: 0, step: 0.1 }], ["top_p", "top-p", 1, { min: 0.05, max: 1, step: 0.05 }], ["top_k", "top-k", "", { min: 1, step: 1 }], ["seed", "Seed", "", { min: 0, step: 1 }]];

export function open({ query, world }) {
  const inputs = Object.fromEntries(NUMBERS.map(([name, , value, limits]) => [name, h("input", { type: "number", value, ...limits })]));
  const texts = { system: h("input", { placeholder: "none" }), prefill: h("input", { placeholder: "what the answer begins with" }), stop: h("input", { placeholder: "texts that end it, by commas" }) };
  const heat = h("input", { type: "checkbox", onchange: () => { for (const side of sides) side.draw(); } });
  const twice = h("input", { type: "checkbox", onchange: () => arrange() });
  const message = h("textarea", { rows: 2, placeholder: "Say something", "aria-label": "Message", "data-filter": true, onkeydown: (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); say(); } } });
  const submit = h("button", { class: "main", onclick: () => say() }, "Send");
  const stop = h("button", { onclick: () => { for (const side of sides) side.cancel(); }, hidden: true }, "Stop");
  const kept = h("span", { class: "quiet" });
  const split = h("div", { class: "split" });
  const note = h("div");
  let models = [];
  const sides = [new Side(0), new Side(1)].map((side) => Object.assign(side, { page: { heat, again: () => update() } }));

  async function load() {
    const bases = world.hello.models.map((name) => [name, `${name} (base)`]);
    try {
      const { checkpoints } = await get("checkpoints", { limit: 1000 });
      const usable = checkpoints.filter((one) => one.checkpoint_type !== "external");
      usable.sort((a, b) => (a.checkpoint_type === "sampler" ? 0 : 1) - (b.checkpoint_type === "sampler" ? 0 : 1));
      models = [...bases, ...usable.map((one) => [one.tinker_path, one.tinker_path.replace("tinker://", "")])];
    } catch (error) {
      note.replaceChildren(problem(error));
      models = bases;
    }
    const other = query.get("other");
    sides[0].choose(models, query.get("model") || world.hello.model);
    sides[1].choose(models, other || models[1]?.[0] || world.hello.model);
    twice.checked = Boolean(other);
    arrange();
  }

  function arrange() {
    split.replaceChildren(...sides.slice(0, twice.checked ? 2 : 1).map((side) => side.node));
    update();
  }

  function update() {
    const busy = sides.some((side) => side.busy);
    submit.disabled = busy;
    stop.hidden = !busy;
    keep.disabled = clear.disabled = busy || !sides[0].messages.length;
    const saved = stored().length;
    kept.textContent = `${saved} ${saved === 1 ? "conversation" : "conversations"} saved`;
    shelf.hidden = !saved;
  }

  function say() {
    const text = message.value.trim();
    // Without a text, what failed is sent again.
    const asked = sides.slice(0, twice.checked ? 2 : 1).filter((side) => text || side.messages.at(-1)?.error);
    if (!asked.length || sides.some((side) => side.busy)) return message.focus();
    const wanted = { prefill: texts.prefill.value, stop: texts.stop.value.split(",").map((one) => one.trim()).filter(Boolean) };
    for (const [name] of NUMBERS) if (inputs[name].value !== "") wanted[name] = +inputs[name].value;
    message.value = "";
    for (const side of asked) side.say(text, texts.system.value.trim(), wanted);
    update();
  }

  const stored = () => JSON.parse(localStorage.getItem(SAVED) ?? "[]");
  const store = (list) => { localStorage.setItem(SAVED, JSON.stringify(list)); update(); };
  const lines = () => stored().map((one) => JSON.stringify(one)).join("\n") + "\n";
  const keep = h("button", { title: "Adds this conversation to a list of training data, kept in this browser", onclick: () => { store([...stored(), ...sides.slice(0, twice.checked ? 2 : 1).filter((side) => side.messages.length).map((side) => ({ messages: side.transcript(texts.system.value.trim()) }))]); toast("Saved as training data"); } }, "Save as training data");
  const take = h("button", { class: "small", onclick: () => save("conversations.jsonl", lines()) }, "Download JSONL");
  const look = h("button", { class: "small", onclick: () => { sessionStorage.setItem("tinker-data", lines()); location.hash = "#/data"; } }, "Look at it");
  const forget = h("button", { class: "small danger", onclick: () => store([]) }, "Forget");
  const shelf = h("div", { class: "row end", hidden: true }, kept, look, take, forget);
  const clear = h("button", { onclick: () => { for (const side of sides) side.clear(); update(); message.focus(); } }, "New conversation");

  load();
  return {
    title: "Chat",
    nodes: [h("div", { class: "row" }, h("h1", {}, "Chat"), h("label", { class: "line" }, twice, "Compare two"), h("label", { class: "line" }, heat, "Probability heat"), h("span", { class: "grow" }), clear, keep),
      shelf, note, split,
      h("div", { class: "card stack" }, message, h("div", { class: "row" }, h("details", { class: "grow" }, h("summary", { class: "quiet" }, "Parameters"), h("div", { class: "params" }, NUMBERS.map(([name, title]) => field(title, inputs[name])), field("System", texts.system, { class: "field wide" }), field("Prefill", texts.prefill, { class: "field wide" }), field("Stop", texts.stop, { class: "field wide" }))), stop, submit))],
    close: () => { for (const side of sides) side.cancel(); },
  };
}

/** One model and the conversation with it. */
class Side {
  constructor(number) {
    this.messages = [];
    this.busy = null;
    this.model = h("select", { "aria-label": number ? "The other model" : "Model", class: "mono" });
    this.talk = h("div", { class: "card talk", "aria-live": "polite" });
    this.node = h("section", { class: "side", "aria-label": number ? "The other model" : "Conversation" }, this.model, this.talk);
    this.draw();
  }

  choose(models, chosen) { this.model.replaceChildren(...options(models, chosen)); }
  cancel() { this.busy?.abort(); }
  clear() { this.cancel(); this.messages = []; this.draw(); }

  /** The conversation as training data; of several answers, the one that was picked. */
  transcript(system) {
    const told = this.messages.filter((one) => !one.error).map((one) => {
      if (one.role === "user") return { role: "user", content: one.text };
      const answer = one.answers[one.picked];
      return { role: "assistant", content: answer.thinking ? [{ type: "thinking", thinking: answer.thinking }, { type: "text", text: answer.text }] : answer.text };
    });
    return system ? [{ role: "system", content: system }, ...told] : told;
  }

  async say(text, system, wanted) {
    // What failed is asked again, or something else in its place.
    if (this.messages.at(-1)?.error) { this.messages.pop(); if (text) this.messages.pop(); }
    if (text) this.messages.push({ role: "user", text });
    const messages = this.transcript(system);
    const turn = { role: "assistant", picked: 0, answers: Array.from({ length: wanted.n ?? 1 }, () => ({ text: wanted.prefill, thinking: "", heat: [] })) };
    this.messages.push(turn);
    this.busy = new AbortController();
    this.draw();
    let done = false;
    try {
      await events("POST", "chat", { model: this.model.value, messages, ...wanted }, this.busy.signal, (kind, value) => {
        if (kind === "piece") { const answer = turn.answers[value.index]; answer.text += value.text; answer.node.firstChild.textContent = answer.text; }
        if (kind === "done") { done = true; for (const one of value.answers) Object.assign(turn.answers[one.index], one, { text: one.content }); }
      });
      if (!done) turn.error = { message: "The answer broke off.", advice: "Send again; the server's output says why." };
    } catch (error) {
      if (error.name === "AbortError") done = true;
      else turn.error = error;
    }
    this.busy = null;
    this.draw();
    this.page.again();
  }

  draw() {
    if (!this.messages.length) return this.talk.replaceChildren(h("div", { class: "empty" }, h("p", {}, "Say something below. Answers come word by word; with heat, each token shows how sure the model was, and what else it might have said.")));
    this.talk.replaceChildren(...this.messages.map((one) => one.role === "user" ? h("div", { class: "turn user" }, h("div", { class: "who" }, "you"), h("div", { class: "said" }, one.text)) : this.turn(one)));
  }

  turn(one) {
    const many = one.answers.length > 1;
    const answers = one.answers.map((answer, index) => {
      const facts = answer.tokens ? `${answer.tokens} tokens, ${answer.reason === "length" ? "cut off" : "ended"}` : "";
      const pick = many ? h("button", { class: "small plain", onclick: () => { one.picked = index; this.draw(); } }, one.picked === index ? "goes on with this" : "go on with this") : null;
      const said = this.page?.heat.checked && answer.heat.length ? warm(answer.heat) : h("div", { class: "said" }, answer.text);
      answer.node = h("div", {}, said);
      const thinking = answer.thinking ? h("details", { open: true }, h("summary", {}, "thinking"), answer.thinking) : null;
      return h("div", { class: "answer stack", "data-picked": many && one.picked === index }, h("div", { class: "who" }, many ? `sample ${index + 1}` : "model", h("span", {}, facts), pick), thinking, answer.node);
    });
    return h("div", { class: "turn" }, answers, one.error ? problem(one.error) : null);
  }
}

/** Tokens coloured by how unlikely they were; each opens what else was likely. */
function warm(heat) {
  const others = h("div");
  let open = null;
  const tokens = heat.map(([text, logprob, top]) => {
    const sure = Math.exp(logprob);
    const token = h("button", { type: "button", "aria-expanded": "false", title: `${num(sure * 100)} %`, onclick: () => {
      open?.setAttribute("aria-expanded", "false");
      open = open === token ? null : token;
      open?.setAttribute("aria-expanded", "true");
      others.replaceChildren(...(open ? [list(text, sure, top)] : []));
    } }, text.replace(/\n/g, "⏎\n"));
    token.style.setProperty("--p", ((1 - sure) * 80).toFixed(1));
    return token;
  });
  return h("div", {}, h("div", { class: "said tokens heat" }, tokens), others);
}

function list(text, sure, top) {
  const rows = top.some(([other]) => other === text) ? top : [[text, Math.log(sure)], ...top];
  return h("div", { class: "others", role: "list", "aria-label": "What else was likely" }, rows.flatMap(([other, logprob]) => { const part = Math.exp(logprob); return [h("span", { class: other === text ? "taken" : null, role: "listitem" }, h("code", {}, JSON.stringify(other).slice(1, -1))), meter(part), h("span", { class: "num" }, `${(part * 100).toFixed(1)} %`)]; }));
}
