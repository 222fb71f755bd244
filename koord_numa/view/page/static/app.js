// Views by the part of the address behind the hash, so that the page works from a file, offline, and behind any proxy path.
const VIEWS = [["cluster", "Cluster"], ["waiting", "Waiting"], ["decisions", "Decisions"]];
const main = document.getElementById("main");
let current = { update: () => {} };

const route = () => {
  const [, view, ...rest] = location.hash.split("/");
  return { view: view || "cluster", name: decodeURIComponent(rest.join("/")) };
};

const show = async () => {
  const { view, name } = route();
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === `#/${view === "nodes" ? "cluster" : view}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    if (view === "nodes") current = await nodeView(main, name);
    else if (view === "waiting") current = await waitingView(main);
    else if (view === "decisions") current = await decisionsView(main);
    else current = clusterView(main);
    document.title = `${name || VIEWS.find(([key]) => key === view)?.[1] || "Cluster"} – koord-numa`;
  } catch (error) {
    fill(main, el("h2", {}, "Nothing to show"), el("p", { class: "bad" }, String(error.message || error)));
    current = { update: () => {} };
  }
};

addEventListener("hashchange", async () => {
  await show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
addEventListener("resize", () => current.resize && current.resize());
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const at = Number(event.key) - 1;
  if (VIEWS[at]) location.hash = `#/${VIEWS[at][0]}`;
  if (event.key === "/" && current.search) {
    event.preventDefault();
    current.search();
  }
});

(async () => {
  const live = document.getElementById("live");
  try {
    await store.load();
  } catch (error) {
    fill(main, el("p", { class: "bad" }, `The state of the cluster cannot be read: ${error.message || error}`));
    return;
  }
  await show();
  store.listeners.add((change) => current.update(change));
  store.live((text) => { live.textContent = text; });
})();
