// The frame around the views: which one is shown, who is logged in, whether the page is live.

import { ask, events, get, h, hasKey, onKeyWanted, problem, setKey, svg } from "./lib.js";
import * as runs from "./runs.js";
import * as run from "./run.js";
import * as checkpoints from "./checkpoints.js";
import * as chat from "./chat.js";
import * as data from "./data.js";
import * as server from "./server.js";

const ICON = (path) => svg(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" aria-hidden="true"><path d="${path}"/></svg>`);
const VIEWS = [
  { name: "runs", title: "Runs", view: runs, icon: "M3 17c5 0 5-10 9-10s4 6 9 6M3 21h18" },
  { name: "checkpoints", title: "Checkpoints", view: checkpoints, server: true, icon: "M6 3h12v18l-6-4-6 4z" },
  { name: "chat", title: "Chat", view: chat, server: true, icon: "M4 5h16v11H9l-5 4z" },
  { name: "data", title: "Data", view: data, icon: "M4 6h16M4 12h10M4 18h13" },
  { name: "server", title: "Server", view: server, server: true, icon: "M4 5h16v5H4zM4 14h16v5H4zM7.5 7.5h.01M7.5 16.5h.01" },
];
const SHORTCUTS = [["1 – 5", "the views, from left to right"], ["/", "filter"], ["j  k", "next and previous row"], ["← → + −", "on a curve: point, and look closer; Esc shows all of it"], ["Enter", "send a message; Shift+Enter begins a line"], ["Esc", "close, or go back to the list"], ["?", "this list"]];

const main = document.getElementById("main");
const live = document.getElementById("live");
let hello = null;
let shown = null;
let connection = null;

/** What is known of the world, for every view. `server` is the last word on the server's figures. */
export const world = { hello: null, server: null };

async function start() {
  try {
    hello = await get("hello");
  } catch (error) {
    if (error.status !== 401) main.replaceChildren(problem(error), h("button", { onclick: start }, "Try again"));
    return;
  }
  world.hello = hello;
  document.getElementById("model").textContent = hello.server ? hello.model : "run folders";
  const nav = VIEWS.filter((view) => hello.server || !view.server);
  const out = hasKey() ? [h("a", { href: "#/runs", title: `Forget the key of ${hello.user}`, onclick: () => { setKey(null); location.reload(); } }, ICON("M10 4H5v16h5M15 8l4 4-4 4M19 12H9"), "Log out")] : [];
  document.getElementById("nav").replaceChildren(...nav.map((view) => h("a", { href: `#/${view.name}`, "data-view": view.name }, ICON(view.icon), view.title)), ...out);
  route();
  listen();
}

/** Shows what the address says. */
function route() {
  if (!hello) return;
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const found = VIEWS.find((view) => view.name === name && (hello.server || !view.server));
  const view = name === "run" ? run : (found ?? VIEWS[0]).view;
  const current = name === "run" ? "runs" : (found ?? VIEWS[0]).name;
  for (const link of document.querySelectorAll("#nav a")) link.dataset.view === current ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  const args = { path: rest.map(decodeURIComponent), query: new URLSearchParams(query), world };
  if (shown?.view === view && shown.page.go?.(args)) return;
  shown?.page.close?.();
  const page = view.open(args);
  shown = { view, page };
  document.title = `${page.title} · tinker`;
  main.replaceChildren(...[page.nodes].flat());
  window.scrollTo(0, 0);
}

/** Hears of changes for as long as the page is open, and connects again when it is cut off. */
async function listen() {
  connection?.abort();
  const mine = connection = new AbortController();
  for (let wait = 500; !mine.signal.aborted; wait = Math.min(wait * 2, 8000)) {
    try {
      await events("GET", "events", undefined, mine.signal, (kind, value) => {
        wait = 500;
        if (kind === "open") { state("live", "live"); shown?.page.hear?.("runs", { changed: [], gone: [], again: true }); return; }
        if (kind === "server") world.server = value;
        shown?.page.hear?.(kind, value);
      });
    } catch (error) {
      if (mine.signal.aborted || error.status === 401) return;
    }
    state("lost", "reconnecting");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

function state(name, text) {
  if (live.dataset.state === name) return;
  live.dataset.state = name;
  live.textContent = text;
}

/** The login form, when the server demands a key. */
function login(reason) {
  if (document.getElementById("key")) return;
  connection?.abort();
  shown?.page.close?.();
  shown = null;
  hello = null;
  document.getElementById("nav").replaceChildren();
  state("", "logged out");
  const key = h("input", { id: "key", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const wrong = hasKey() ? h("div", { class: "problem", role: "alert" }, reason ?? "The key is not valid.") : null;
  main.replaceChildren(h("div", { class: "card login" }, h("form", { onsubmit: (event) => { event.preventDefault(); setKey(key.value.trim()); main.replaceChildren(); start(); } },
    h("h1", {}, "Log in"), h("p", { class: "quiet" }, "This server wants one of the keys of the file it was started with."), wrong,
    h("label", { class: "field", for: "key" }, "API key", key), h("button", { class: "main" }, "Log in"),
    h("p", { class: "quiet" }, "It is kept for this tab only and sent in a header."))));
  key.focus();
}

function help() {
  ask(h("h2", {}, "Keyboard"), h("dl", { class: "facts" }, SHORTCUTS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])), "Close");
}

function shortcut(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "Escape") { typing ? event.target.blur() : shown?.page.back?.(); return; }
  if (typing) return;
  const links = [...document.querySelectorAll("#nav a[data-view]")];
  if (/^[1-5]$/.test(event.key) && links[event.key - 1]) links[event.key - 1].click();
  else if (event.key === "?") help();
  else if (event.key === "/") document.querySelector("[data-filter]")?.focus();
  else if (event.key === "j" || event.key === "k") {
    const rows = [...document.querySelectorAll("[data-row]")];
    const at = rows.indexOf(document.activeElement) + (event.key === "j" ? 1 : -1);
    rows[Math.max(0, Math.min(rows.length - 1, at))]?.focus();
  } else return;
  event.preventDefault();
}

onKeyWanted(login);
addEventListener("hashchange", route);
addEventListener("keydown", shortcut);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.getElementById("help").addEventListener("click", help);
start();
