// What was saved on this server.

import { age, ask, bytes, copy, empty, field, get, h, latest, options, patch, problem, send, toast } from "./lib.js";

const LASTING = [["", "forever"], ["3600", "1 hour"], ["86400", "1 day"], ["604800", "7 days"], ["2592000", "30 days"]];

export function open({ world }) {
  const body = h("tbody");
  const note = h("div");
  const filter = h("input", { type: "search", placeholder: "Filter by path…", "aria-label": "Filter checkpoints", "data-filter": true, oninput: () => draw() });
  const kind = h("select", { "aria-label": "Kind", onchange: () => draw() }, options([["", "all kinds"], ["sampler", "to sample from"], ["training", "to go on from"], ["external", "for other programs"]]));
  const compare = h("a", { class: "button", href: "#/chat", hidden: true }, "Compare");
  const total = h("span", { class: "quiet" });
  const table = h("div", { class: "card flush", hidden: true }, h("div", { class: "scroll" }, h("table", { "aria-label": "Checkpoints" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col", "aria-label": "Pick two to compare" }), h("th", { scope: "col" }, "Checkpoint"), h("th", { scope: "col", class: "num phone-less" }, "Size"), h("th", { scope: "col", class: "num phone-less" }, "Saved"), h("th", { scope: "col", class: "num phone-less" }, "Expires"), h("th", { scope: "col" }, h("span", { class: "quiet" }, "Actions")))), body)));
  const picked = [];
  let list = null;
  // The server counts what it saves, and the requests by which others delete and change.
  const touched = (figures) => figures.requests.filter((one) => one.method !== "GET" && one.path.includes("checkpoint")).reduce((sum, one) => sum + one.count, figures.checkpoints);
  let seen = world.server && touched(world.server.figures);

  const question = latest(() => get("checkpoints", { limit: 1000 }));
  async function load() {
    try {
      const answer = await question();
      if (!answer) return;
      list = answer.checkpoints;
      for (const gone of picked.filter((path) => !list.some((one) => one.tinker_path === path))) picked.splice(picked.indexOf(gone), 1);
      draw();
    } catch (error) {
      note.replaceChildren(problem(error));
    }
  }

  function draw() {
    if (!list) return;
    const kept = list.filter((one) => one.tinker_path.includes(filter.value) && (!kind.value || one.checkpoint_type === kind.value));
    patch(body, kept, (one) => one.tinker_path, row);
    total.textContent = kept.length === list.length ? `${list.length}` : `${kept.length} of ${list.length}`;
    table.hidden = !kept.length;
    note.replaceChildren(...(kept.length ? [] : [list.length ? empty("No checkpoint fits the filter") : empty("No checkpoints yet", h("p", {}, "Training saves them here: at its end, and on the way if asked."), h("pre", {}, "tinker train sft chats.jsonl -m MODEL -o FOLDER"))]));
    compare.hidden = picked.length !== 2;
    compare.href = `#/chat?model=${encodeURIComponent(picked[0] ?? "")}&other=${encodeURIComponent(picked[1] ?? "")}`;
  }

  function pick(path, on) {
    const at = picked.indexOf(path);
    if (on && at < 0) picked.push(path);
    if (!on && at >= 0) picked.splice(at, 1);
    if (picked.length > 2) picked.shift();
    for (const box of body.querySelectorAll("input")) box.checked = picked.includes(box.closest("tr").dataset.key);
    draw();
  }

  const url = (one) => `checkpoints/${one.tinker_path.replace("tinker://", "").split("/").map(encodeURIComponent).join("/")}`;
  async function change(what, done) {
    try {
      const answer = await what();
      toast(done);
      await load();
      return answer;
    } catch (error) {
      note.replaceChildren(problem(error));
    }
  }
  async function remove(one) {
    const sure = await ask(h("h2", {}, "Delete this checkpoint?"), [h("code", { class: "tokens" }, one.tinker_path), h("p", { class: "quiet" }, "It cannot be brought back.")], "Delete", { danger: true, no: "Keep it" });
    if (sure) change(() => send("DELETE", url(one)), "Deleted");
  }
  async function lifetime(one) {
    const said = await ask(h("h2", {}, "How long is it kept?"), [h("code", { class: "tokens" }, one.tinker_path), field("From now on", h("select", { name: "ttl" }, options(LASTING)))], "Set", { no: "Cancel" });
    if (said) change(() => send("PUT", `${url(one)}/ttl`, { ttl_seconds: said.ttl ? +said.ttl : null }), said.ttl ? "It will expire" : "It is kept");
  }
  async function take(one) {
    const answer = await change(() => get(`${url(one)}/archive`), "Exported");
    if (answer) h("a", { href: new URL(answer.url).pathname, download: "checkpoint.tar" }).click();
  }

  function row(one) {
    const samples = one.checkpoint_type !== "external";
    const what = { sampler: "to sample from", training: "to go on from", external: "for other programs" }[one.checkpoint_type] ?? one.checkpoint_type;
    const [run, name] = [one.tinker_path.split("/")[2], one.tinker_path.split("/").slice(4).join("/")];
    return h("tr", {},
      h("td", {}, samples ? h("input", { type: "checkbox", "aria-label": `Compare ${one.tinker_path}`, checked: picked.includes(one.tinker_path), onchange: (event) => pick(one.tinker_path, event.target.checked) }) : null),
      h("td", { class: "path" }, h("div", { class: "row tight" }, h("b", { class: "cut" }, name), h("span", { class: "badge" }, what), one.public ? h("span", { class: "badge warn" }, "public") : null), h("div", { class: "mono quiet cut", title: one.tinker_path }, run)),
      h("td", { class: "num phone-less" }, bytes(one.size_bytes)), h("td", { class: "num quiet phone-less" }, age(Date.parse(one.time))), h("td", { class: "num quiet phone-less" }, one.expires_at ? age(Date.parse(one.expires_at)) : "never"),
      h("td", {}, h("div", { class: "row tight end" }, samples ? h("a", { class: "button small", href: `#/chat?model=${encodeURIComponent(one.tinker_path)}`, "data-row": true }, "Chat") : null, h("button", { class: "small", onclick: () => copy(one.tinker_path) }, "Copy path"), h("button", { class: "small", onclick: () => lifetime(one) }, "Lifetime"), h("button", { class: "small", title: "A PEFT adapter as a tar archive", onclick: () => take(one) }, "Export"), h("button", { class: "small danger", "aria-label": `Delete ${one.tinker_path}`, onclick: () => remove(one) }, "Delete"))));
  }

  load();
  return {
    title: "Checkpoints",
    nodes: [h("div", { class: "row" }, h("h1", {}, "Checkpoints"), total, h("span", { class: "grow" }), compare, kind, filter), note, table],
    hear: (kind, news) => { if (kind === "server" && touched(news.figures) !== seen) { seen = touched(news.figures); load(); } },
  };
}
