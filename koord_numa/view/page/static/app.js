// Views by the part of the address behind the hash, so that the page works from a file, offline, and behind any proxy path.
const VIEWS = [["cluster", "Cluster"], ["waiting", "Waiting"], ["decisions", "Decisions"]];
const main = document.getElementById("main");
let current = { update: () => {} };

const route = () => {
  const [path, query] = location.hash.split("?", 2);
  const [, view, ...rest] = path.split("/");
  return { view: view || "cluster", name: decodeURIComponent(rest.join("/")), query: new URLSearchParams(query || "") };
};

const LISTED = 50;

// A search with one result leads to the node, the pod's node, or the reason why the pod waits.
const podsView = async (main, text) => {
  const here = location.hash;
  const found = await store.find(text);
  if (location.hash !== here) return current;
  const nodes = store.cluster.nodes.map((node) => node.name).filter((name) => name.includes(text));
  const [podsCalled, nodesCalled] = [found.items.filter((one) => one.pod === text), nodes.filter((name) => name === text)];
  const [pods, places] = podsCalled.length || nodesCalled.length ? [podsCalled, nodesCalled] : [found.items, nodes];
  if (pods.length + places.length === 1) {
    const pod = pods.length && encodeURIComponent(pods[0].pod);
    const node = encodeURIComponent(pods.length ? pods[0].node : places[0]);
    location.replace(!node ? `#/waiting?pod=${pod}` : `#/nodes/${node}${pod ? `?pod=${pod}` : ""}`);
    return { update: () => {} };
  }
  const waits = (pod) => el("a", { href: `#/waiting?pod=${encodeURIComponent(pod)}` }, "waits");
  fill(main, el("h2", {}, `Pods and nodes with “${text}”`),
    nodes.length ? el("p", {}, `${plural(nodes.length, "node")}: `, nodes.slice(0, LISTED).flatMap((name, at) => (at ? [", ", nodeLink(name)] : [nodeLink(name)])),
      nodes.length > LISTED ? " and others" : "") : null,
    found.items.length
      ? table("Pods found", ["Pod", "Node"], found.items.map((one) => [podLink(one.pod), one.node ? nodeLink(one.node) : waits(one.pod)]))
      : el("p", { class: "muted" }, `The scheduler knows no such pod${nodes.length ? "" : " or node"}. It knows pods that wait for it, and all pods on nodes.`),
    found.more ? el("p", { class: "muted" }, `${plural(found.more, "more pod")} not shown.`) : null);
  return { update: () => {} };
};

const show = async () => {
  const { view, name, query } = route();
  for (const link of document.querySelectorAll("header nav a")) {
    const here = link.getAttribute("href") === `#/${view === "nodes" ? "cluster" : view}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    if (view === "nodes") current = await nodeView(main, name, query);
    else if (view === "pods") current = await podsView(main, name);
    else if (view === "waiting") current = await (query.get("pod") ? waitingPodView(main, query.get("pod")) : waitingView(main));
    else if (view === "decisions") current = await decisionsView(main, name, query);
    else current = clusterView(main, query);
    document.title = `${name || VIEWS.find(([key]) => key === view)?.[1] || "Cluster"} – koord-numa`;
  } catch (error) {
    const what = view === "nodes" ? `Node ${name} ` : query.get("pod") ? `Pod ${query.get("pod")} ` : "";
    fill(main, el("h2", {}, "Nothing to show"), el("p", { class: "bad" }, `${what}${error.message || error}`));
    current = { update: () => {} };
  }
};

addEventListener("hashchange", async () => {
  await show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = event.target.elements.pod.value.trim();
  if (text) location.hash = `#/pods/${encodeURIComponent(text)}`;
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
  store.loadFirst();
  await show();
  store.listeners.add((change) => current.update(change));
  store.live((text) => { live.textContent = text; });
})();
