// The server itself: what waits, what is in memory, what was asked.

import { bytes, count, empty, h, meter, patch, seconds, svg, training } from "./lib.js";

export function open({ world }) {
  const tiles = h("div", { class: "tiles" });
  const rate = h("b");
  const spark = h("div");
  const memory = h("div");
  const models = h("tbody");
  const requests = h("tbody");
  const none = empty("No models in training", h("p", {}, "A client that creates one shows here, with what waits for it:"), h("pre", {}, training(world.hello, "FOLDER")));
  const table = (label, heads, body) => h("div", { class: "scroll" }, h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, heads.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))), body));
  const modelCard = h("div", { class: "card flush" }, table("Models in training", [["Model in training"], ["Base", "phone-less"], ["Rank", "num"], ["State"], ["Waiting", "num"]], models));

  function draw() {
    if (!world.server) return;
    const { figures, spark: drawn } = world.server;
    const list = [["models in training", count(figures.models.length)], ["requests waiting", count(figures.queued)], ["samples under way", count(figures.pending_samples)], ["sessions", count(figures.sessions)], ["sampling clients", count(figures.samplers)], [`adapters in memory, ${bytes(figures.adapter_bytes)}`, count(figures.adapters)], [`results kept, ${bytes(figures.result_bytes)}`, count(figures.results)], ["checkpoints saved", count(figures.checkpoints)], ["tokens trained on", count(figures.training)], ["prompt tokens read", count(figures.prefill)], ["tokens sampled", count(figures.sample)]];
    tiles.replaceChildren(...list.map(([label, value]) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, label))));
    rate.textContent = count(figures.rate);
    spark.replaceChildren(svg(drawn));
    memory.replaceChildren(h("div", { class: "row between" }, h("span", { class: "quiet" }, "promised to models in training"), h("span", {}, `${bytes(figures.reserved_bytes)} of ${bytes(figures.memory_limit_bytes)}`)), meter(figures.reserved_bytes / figures.memory_limit_bytes), h("div", { class: "row between" }, h("span", { class: "quiet" }, "the process"), h("span", {}, bytes(figures.resident_bytes))));
    none.hidden = figures.models.length > 0;
    modelCard.hidden = !figures.models.length;
    patch(models, figures.models, (one) => one.id, (one) => h("tr", {}, h("td", { class: "mono" }, one.id), h("td", { class: "mono quiet phone-less" }, one.base_model), h("td", { class: "num" }, String(one.rank)), h("td", {}, h("span", { class: `badge ${one.running ? "running" : ""}` }, one.running ? "at work" : "waits for requests")), h("td", { class: "num" }, count(one.queued))));
    patch(requests, figures.requests, (one) => one.method + one.path, (one) => h("tr", {}, h("td", { class: "mono" }, h("span", { class: "quiet" }, `${one.method} `), one.path), h("td", { class: "num" }, count(one.count)), h("td", { class: "num" }, one.failed ? h("span", { class: "badge bad" }, count(one.failed)) : "0"), h("td", { class: "num quiet" }, seconds(one.seconds / Math.max(1, one.count)))));
  }

  draw();
  return {
    title: "Server",
    nodes: [h("div", { class: "row" }, h("h1", {}, "Server"), h("span", { class: "quiet" }, `${world.hello.model} · tinker ${world.hello.version}`)),
      h("div", { class: "split" }, h("div", { class: "card" }, h("h2", {}, "Tokens a second"), h("div", { class: "row between tile-row" }, rate, spark)), h("div", { class: "card stack" }, h("h2", {}, "Memory"), memory)), tiles, none, modelCard,
      h("div", { class: "card flush" }, table("Requests", [["Requests since the start"], ["Count", "num"], ["Failed", "num"], ["Until answered", "num"]], requests))],
    hear: (kind) => { if (kind === "server") draw(); },
  };
}
