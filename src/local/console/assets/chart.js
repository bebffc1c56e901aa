// A curve that the server drew, with a pointer on it: values under it, closer looks.

import { get, h, num, problem, svg } from "./lib.js";

const HEIGHT = 236;

export class Chart {
  /** Shows a metric; `settings` is shared by all charts of a run and read at each drawing. */
  constructor(metric, settings, drop) {
    this.metric = metric;
    this.settings = settings;
    this.range = null;
    this.from = null;
    this.plot = h("div", { class: "plot", tabindex: "0", role: "group", "aria-label": `${metric}: arrow keys point, plus and minus zoom, Escape shows all` });
    this.readout = h("div", { class: "readout", role: "status" });
    this.reset = h("button", { class: "plain small", hidden: true, onclick: () => this.zoom(null) }, "show all");
    const head = h("div", { class: "row between" }, h("h3", { class: "cut grow", title: metric }, metric), this.reset, drop ? h("button", { class: "plain small", "aria-label": `Hide ${metric}`, onclick: drop }, "✕") : null);
    this.node = h("div", { class: "card chart" }, head, this.plot, this.readout);
    this.watch = new ResizeObserver(() => { const wide = Math.round(this.plot.clientWidth); if (wide && wide !== this.width) { this.width = wide; this.load(); } });
    this.watch.observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.move(event));
    this.plot.addEventListener("pointerleave", () => { if (this.from === null) this.point(null); });
    this.plot.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && event.button === 0 && this.frame) this.from = this.place(event); });
    addEventListener("pointerup", this.up = (event) => this.release(event));
    this.plot.addEventListener("dblclick", () => this.zoom(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  close() {
    this.watch.disconnect();
    removeEventListener("pointerup", this.up);
    this.asking?.abort();
  }

  async load() {
    if (!this.width) return;
    this.asking?.abort();
    const mine = this.asking = new AbortController();
    try {
      const query = { ...this.settings, metric: this.metric, width: this.width, height: HEIGHT, from: this.range?.[0], to: this.range?.[1] };
      const drawn = await get("plot", query, mine.signal);
      this.series = drawn.series;
      this.art = svg(drawn.svg);
      const numbers = (name) => this.art.getAttribute(name).split(" ").map(Number);
      const [left, top, width, height] = numbers("data-frame");
      this.frame = { left, top, width, height, x: numbers("data-x"), y: numbers("data-y"), log: this.art.hasAttribute("data-log") };
      this.plot.replaceChildren(this.art);
      this.point(this.at ?? null);
    } catch (error) {
      if (error.name !== "AbortError") this.plot.replaceChildren(problem(error));
    }
  }

  /** The value of the horizontal axis under a pointer. */
  place(event) {
    const box = this.plot.getBoundingClientRect();
    const { left, width, x } = this.frame;
    const part = ((event.clientX - box.left) * (this.width / box.width) - left) / width;
    return x[0] + Math.min(1, Math.max(0, part)) * (x[1] - x[0]);
  }

  move(event) {
    if (!this.frame) return;
    const at = this.place(event);
    this.point(at);
    this.art.querySelector(".range")?.remove();
    if (this.from === null) return;
    const [a, b] = [this.across(Math.min(this.from, at)), this.across(Math.max(this.from, at))];
    this.art.append(shape("rect", { class: "range", x: a, y: this.frame.top, width: b - a, height: this.frame.height }));
  }

  release(event) {
    if (this.from === null) return;
    const [from, to] = [this.from, this.place(event)];
    this.from = null;
    if (Math.abs(this.across(from) - this.across(to)) > 8) this.zoom([Math.min(from, to), Math.max(from, to)]);
    else this.art.querySelector(".range")?.remove();
  }

  zoom(range) {
    this.range = range;
    this.reset.hidden = !range;
    this.load();
  }

  key(event) {
    if (!this.frame) return;
    const { x } = this.frame;
    const [width, middle] = [x[1] - x[0], this.at ?? (x[0] + x[1]) / 2];
    const near = (part) => this.zoom([Math.max(x[0], middle - width * part), Math.min(x[1], middle + width * part)]);
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in steps) this.point(this.next(steps[event.key]));
    else if (event.key === "+" || event.key === "=") near(0.25);
    else if ((event.key === "-" || event.key === "Escape") && this.range) this.zoom(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The neighbour of the point under the pointer. */
  next(step) {
    const points = this.within(this.series[0]);
    const at = this.at === null || this.at === undefined ? (step > 0 ? -1 : points.length) : nearest(points, this.at);
    return points[Math.min(points.length - 1, Math.max(0, at + step))]?.[0] ?? null;
  }

  within(series) {
    const { x, log } = this.frame;
    return series.points.filter(([at, value]) => at >= x[0] && at <= x[1] && (!log || value > 0));
  }

  across(value) { const { left, width, x } = this.frame; return left + (value - x[0]) / (x[1] - x[0]) * width; }
  down(value) { const { top, height, y, log } = this.frame; return top + (1 - ((log ? Math.log10(value) : value) - y[0]) / (y[1] - y[0])) * height; }

  /** What is said while nobody points: where the curves end. */
  rest() {
    const ends = this.series?.map((series, index) => ({ series, index, point: series.points.at(-1) })).filter((one) => one.point) ?? [];
    this.readout.replaceChildren(...ends.map(({ series, index, point }) => h("span", { class: "cut" }, h("span", { class: `c${index}` }, this.series.length > 1 ? `${series.name} ` : "last "), h("b", {}, num(point[1])))));
  }

  /** Marks the values at a place, and says them. */
  point(at) {
    this.at = at;
    for (const old of this.art?.querySelectorAll(".hair, .mark") ?? []) old.remove();
    const found = at === null || !this.frame ? [] : this.series.map((series, index) => { const points = this.within(series); return { series, index, point: points[nearest(points, at)] }; }).filter((one) => one.point);
    if (!found.length) return this.rest();
    const unit = this.settings.x === "time" ? "s" : "";
    const [x] = found[0].point;
    this.art.append(shape("line", { class: "hair", x1: this.across(x), x2: this.across(x), y1: this.frame.top, y2: this.frame.top + this.frame.height }));
    for (const { index, point } of found) this.art.append(shape("circle", { class: `mark f${index}`, cx: this.across(point[0]), cy: this.down(point[1]), r: 4 }));
    this.readout.replaceChildren(h("span", {}, unit ? `${num(x)} ${unit}` : `step ${num(x)}`),
      ...found.map(({ series, index, point }) => h("span", { class: "cut" }, found.length > 1 ? h("span", { class: `c${index}` }, `${series.name} `) : null, h("b", {}, num(point[1])))));
  }
}

function shape(name, props) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(props)) made.setAttribute(key, value);
  return made;
}

function nearest(points, at) {
  let best = 0;
  points.forEach(([x], index) => { if (Math.abs(x - at) < Math.abs(points[best][0] - at)) best = index; });
  return best;
}
