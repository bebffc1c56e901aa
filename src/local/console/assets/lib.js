// What every view uses: elements, requests, events, numbers.

/** Makes an element. Texts stay texts: nothing is ever parsed as HTML. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An SVG that the server drew. */
export function svg(text) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  return parsed.nodeName === "svg" ? document.importNode(parsed, true) : h("span");
}

/** What went wrong with a request, and what to do about it. */
export class Problem extends Error {
  constructor(message, advice, status) {
    super(message);
    this.advice = advice;
    this.status = status;
  }
}

const KEY = "tinker-key";
let askForKey = () => {};

/** Whom to call when the server wants a key. */
export function onKeyWanted(ask) { askForKey = ask; }
/** Keeps the key for this tab, until it is closed; it travels in a header and nowhere else. */
export function setKey(key) { key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY); }
export function hasKey() { return sessionStorage.getItem(KEY) !== null; }

async function call(method, path, { query, body, signal } = {}) {
  const url = new URL("/console/" + path, location.origin);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "" && value !== false) url.searchParams.set(name, value === true ? "1" : value);
  }
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers["x-api-key"] = key;
  if (body !== undefined) headers["content-type"] = "application/json";
  let reply;
  try {
    reply = await fetch(url, { method, headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer.", "Start it again, or look at its output; the page reconnects by itself.");
  }
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => ({}));
  if (reply.status === 401) askForKey(said.detail);
  const advice = { 401: "Log in with a key of this server.", 404: "It may have been deleted or moved; go back to the list.", 413: "Take a smaller file.", 429: "Wait a moment and try again.", 500: "The server's output says why." };
  throw new Problem(said.detail ?? `The server answered ${reply.status}.`, advice[reply.status] ?? "", reply.status);
}

/** Reads JSON. */
export const get = async (path, query, signal) => (await call("GET", path, { query, signal })).json();
/** Changes something. */
export const send = async (method, path, body) => (await call(method, path, { body })).json();

/** Reads server-sent events until they end. A header carries the key, which EventSource cannot. */
export async function events(method, path, body, signal, hear) {
  const reply = await call(method, path, { body, signal });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const fields = Object.fromEntries(text.slice(0, end).split("\n").map((line) => { const at = line.indexOf(": "); return [line.slice(0, at), line.slice(at + 2)]; }));
      text = text.slice(end + 2);
      hear(fields.event, JSON.parse(fields.data));
    }
  }
}

/** A command that trains on this very server. The key is not shown: whoever logged in has it. */
export function training(hello, folder) {
  const key = sessionStorage.getItem(KEY) ? "KEY" : "tml-any";
  const place = hello.server ? `TINKER_BASE_URL=${location.origin} TINKER_API_KEY=${key} ` : "";
  return `${place}tinker train sft chats.jsonl -m ${hello.server ? hello.model : "MODEL"} --learning-rate 1e-3 -o ${folder}`;
}

/** A number in few characters. */
export function num(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return value === undefined || value === null ? "–" : String(value);
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (Number.isInteger(value) && size < 1e6) return String(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2).replace("e+", "e");
  return value.toFixed(Math.max(0, 4 - Math.max(0, Math.floor(Math.log10(size)) + 1)));
}
export const count = (value) => value === undefined ? "–" : value.toLocaleString("en-US");
export function bytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1024;
  }
}
export function seconds(value) {
  if (value < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return value < 100 ? `${value.toFixed(2)} s` : `${Math.round(value / 60)} min`;
}
/** How long ago, in one unit. */
export function age(millis) {
  if (!millis) return "–";
  const passed = (Date.now() - millis) / 1000;
  const ahead = passed < 0;
  const size = Math.abs(passed);
  const [many, unit] = size < 60 ? [size, "s"] : size < 3600 ? [size / 60, "min"] : size < 86400 ? [size / 3600, "h"] : [size / 86400, "d"];
  if (size < 5) return "now";
  return ahead ? `in ${Math.round(many)} ${unit}` : `${Math.round(many)} ${unit} ago`;
}

export const badge = (status) => h("span", { class: `badge ${status}` }, status);
export const meter = (part) => { const bar = h("i"); bar.style.width = `${Math.min(100, Math.max(0, part * 100))}%`; return h("div", { class: "meter", "aria-hidden": true }, bar); };
export const problem = (error) => h("div", { class: "problem", role: "alert" }, h("p", {}, error.message), error.advice ? h("p", {}, error.advice) : null);
export const empty = (title, ...rest) => h("div", { class: "card empty" }, h("h2", {}, title), ...rest);
export const field = (label, control, props = {}) => h("label", { class: "field", ...props }, label, control);
export const options = (list, chosen) => list.map((one) => { const [value, label] = Array.isArray(one) ? one : [one, one]; return h("option", { value, selected: value === chosen }, label); });

let fading;
export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.dataset.on = "";
  clearTimeout(fading);
  fading = setTimeout(() => delete place.dataset.on, 2600);
}
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    // Pages that did not come encrypted or from this machine may not write to the clipboard.
    ask(h("h2", {}, "Copy"), [field("Select and copy", h("input", { value: text, readonly: true, class: "mono" }))], "Close");
  }
}
export function save(name, text, type = "application/jsonl") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Asks something in a dialog; resolves with the form's values, or null. */
export function ask(title, content, yes = "OK", { danger = false, no = null } = {}) {
  return new Promise((resolve) => {
    const form = h("form", { method: "dialog" }, title, content,
      h("div", { class: "row end" }, no ? h("button", { type: "button", onclick: () => dialog.close() }, no) : null, h("button", { class: danger ? "danger" : "main", value: "yes", autofocus: !no }, yes)));
    // An element of its own: that another was closed is told late, when this one may be open.
    const dialog = h("dialog", { id: "dialog", onclose: () => resolve(dialog.returnValue === "yes" ? Object.fromEntries(new FormData(form)) : null) }, form);
    document.getElementById("dialog").replaceWith(dialog);
    dialog.showModal();
  });
}

/** Makes of a question one whose answer only counts if it was not asked again meanwhile: answers
 * may come in another order than the questions. */
export function latest(question) {
  let last = 0;
  return async (...args) => {
    const mine = ++last;
    try {
      const answer = await question(...args);
      return mine === last ? answer : undefined;
    } catch (error) {
      if (mine === last) throw error;
    }
  };
}

/** Puts rows into a table's body, changing only those that differ: focus stays, nothing jumps. */
export function patch(body, items, key, make) {
  const old = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const held = (row) => row.contains(document.activeElement) ? [...row.querySelectorAll("a,button,input")].indexOf(document.activeElement) : -1;
  let place = body.firstElementChild;
  for (const item of items) {
    const [id, print] = [key(item), JSON.stringify(item)];
    let row = old.get(id) ?? make(item);
    const focus = old.delete(id) ? held(row) : -1;
    if (row.dataset.print && row.dataset.print !== print) {
      const fresh = make(item);
      if (row === place) place = fresh;
      row.replaceWith(fresh);
      row = fresh;
    }
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
    row.dataset.key = id;
    row.dataset.print = print;
    if (focus >= 0) row.querySelectorAll("a,button,input")[focus]?.focus({ preventScroll: true });
  }
  for (const row of old.values()) row.remove();
}
