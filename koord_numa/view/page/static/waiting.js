// Pods that wait: one entry for all pods of one shape, the reason laid onto each NUMA node, and what would make them fit.
const bar = (one) => {
  const scale = Math.max(one.total, one.needed) || 1;
  const [share, need] = [one.free / scale, one.needed / scale];
  return el("div", { class: "bar", role: "img", "aria-label": `${one.freeText} of ${one.totalText} free, ${one.neededText} needed` },
    el("i", { style: { width: `${share * 100}%` } }), el("u", { style: { left: `calc(${need * 100}% - 3px)` } }));
};

// "18 of 46 CPUs", with the unit once.
const freeOf = (part) => {
  const unit = part.totalText.replace(/^\S+/, "");
  return `${unit && part.freeText.endsWith(unit) ? part.freeText.slice(0, -unit.length) : part.freeText} of ${part.totalText}`;
};

// Entries that differ only in a name are one entry with all names.
const foldEqual = (entries, name) => {
  const found = new Map();
  for (const entry of entries) {
    const key = JSON.stringify({ ...entry, [name]: null });
    if (!found.has(key)) found.set(key, { ...entry, names: [] });
    found.get(key).names.push(entry[name]);
  }
  return [...found.values()];
};

// The node that a proposal names, as a link.
const proposal = (way) => {
  const at = way.node ? way.text.indexOf(way.node) : -1;
  return el("li", { "data-kind": way.kind },
    at < 0 ? way.text : [way.text.slice(0, at), nodeLink(way.node), way.text.slice(at + way.node.length)]);
};

const closest = (one) => {
  const rows = foldEqual(one.numa, "numa").map((part) =>
    [`NUMA ${part.names.join(", ")}`, part.resource, freeOf(part), part.neededText, bar(part)]);
  const names = one.names.sort(natural).flatMap((name, at) => (at ? [", ", nodeLink(name)] : [nodeLink(name)]));
  return el("div", {}, el("h4", {}, names, " ", el("span", { class: "muted" }, one.message)),
    one.detail ? el("p", { class: "muted" }, one.detail) : null,
    rows.length ? table(`NUMA nodes of ${one.names.join(", ")}`, ["NUMA node", "Resource", "Free", "Needed", ""], rows) : null);
};

const waitingEntry = (one) =>
  el("article", { class: "waiting" },
    el("h3", {}, one.pods[0], one.count > 1 ? el("span", { class: "muted" }, ` and ${number(one.count - 1)} more of this shape`) : null),
    el("p", {}, `${one.asks}`, one.policies && one.policies !== "-" ? `, ${one.policies}` : "", el("span", { class: "muted" }, `, priority ${one.priority}, waits ${seconds(one.waitedSeconds)}`)),
    el("p", {}, one.why),
    one.claims.length
      ? el("ul", { class: "would", "aria-label": "Resource claims" }, one.claims.map((it) =>
        el("li", {}, `claim ${it.entry}${it.claim ? ` (${it.claim})` : ""}, ${it.state}${it.asks.length ? `: ${it.asks.join("; ")}` : ""}`)))
      : null,
    el("h4", {}, "What would make it fit"),
    one.wouldFit.length
      ? el("ul", { class: "would" }, one.wouldFit.map(proposal))
      : el("p", { class: "muted" }, "No single change of the pod, rebind or eviction was found."),
    one.closest.length ? el("details", { open: true, "data-key": `closest ${one.pods[0]}` }, el("summary", {}, "Nodes that came closest"), foldEqual(one.closest, "node").map(closest)) : null);

// One entry for all waiting pods of a group: how many exist, which pod blocks the others, and a row for each topology domain.
const gangLine = (gang) => {
  const wanted = gang.minCount === null ? `${plural(gang.pods, "pod")} exist` : `${gang.pods} of ${gang.minCount} pods exist`;
  return `${gang.name}: ${wanted}, ${gang.scheduled} with a node`;
};

const groupEntry = (one) =>
  el("article", { class: "waiting", "data-group": one.gangs[0].name },
    el("h3", {}, `Group ${one.gangs.map((gang) => gang.name).join(", ")}`, el("span", { class: "muted" }, ` ${plural(one.count, "pod")} waiting`)),
    el("ul", { class: "would", "aria-label": "Gangs" }, one.gangs.map((gang) => el("li", {}, gangLine(gang)))),
    el("p", {}, one.asks.join("; "), el("span", { class: "muted" }, `, priority ${one.priority}, waits ${seconds(one.waitedSeconds)}`)),
    el("p", {}, one.why),
    one.domains.length
      ? table("Topology domains", ["Domain", "Pods placed", "Blocked by", "Reason"],
        one.domains.map((it) => [it.name, `${it.placed} of ${it.members}`, orNone(it.blockedBy), orNone(it.why)]))
      : null,
    one.wouldFit.length
      ? [el("h4", {}, "What would make the group fit"), el("ul", { class: "would" }, one.wouldFit.map(proposal))]
      : null,
    el("details", { "data-key": `pods ${one.gangs[0].name}` }, el("summary", {}, `Pods that wait${one.count > one.pods.length ? `, ${one.pods.length} of ${one.count}` : ""}`), el("ul", {}, one.pods.map((pod) => el("li", {}, pod)))),
    one.closest.length ? el("details", { "data-key": `closest ${one.gangs[0].name}` }, el("summary", {}, `Nodes that came closest for ${one.blockedBy}`), foldEqual(one.closest, "node").map(closest)) : null);

// A document that is read again some time after the cluster has changed, and drawn again when it says something else.
const READ_AGAIN = 2000;
const sameText = (key, value) => (key === "generatedAt" || key === "waitedSeconds" ? undefined : value);

const followed = async (main, path, draw) => {
  let said = "";
  let pause = 0;
  const here = location.hash;
  const read = async () => {
    const found = await store.read(path);
    const text = JSON.stringify(found, sameText);
    if (text === said || location.hash !== here) return;
    said = text;
    const open = new Map([...main.querySelectorAll("details[data-key]")].map((it) => [it.dataset.key, it.open]));
    fill(main, draw(found));
    for (const it of main.querySelectorAll("details[data-key]")) it.open = open.get(it.dataset.key) ?? it.open;
  };
  await read();
  return { update: () => {
    if (pause) return;
    pause = setTimeout(() => {
      pause = 0;
      read().catch(() => {});
    }, READ_AGAIN);
  } };
};

const waitingSummary = (found) => {
  const pods = found.classes.reduce((sum, one) => sum + one.count, 0);
  const longest = largest([...found.classes, ...found.groups].map((one) => one.waitedSeconds));
  return facts([["Pods", `${number(pods)}${found.more ? " or more" : ""}`], ["Shapes", number(found.classes.length + found.more)], ["Groups", number(found.groups.length)],
    ["Longest wait", seconds(longest)]]);
};

const waitingView = (main) => followed(main, "/api/v1/waiting", (found) => [
  el("h2", {}, "Pods that wait"),
  found.groups.length || found.classes.length
    ? [waitingSummary(found), found.groups.map(groupEntry), found.classes.filter((one) => !one.group).map(waitingEntry)]
    : el("p", { class: "ok" }, "No pod waits."),
  found.more ? el("p", { class: "muted" }, `${plural(found.more, "more shape")} not shown.`) : null,
]);

// One pod: its group, or the pods of its shape. A file lists these with all others.
const waitingPodView = (main, pod) => followed(main, store.embedded ? "/api/v1/waiting" : `/api/v1/pods/${pod}`, (found) => {
  const [group, entry] = store.embedded
    ? [found.groups, found.classes].map((entries) => entries.find((one) => one.pods.includes(pod))) : [found.group, found.shape];
  const waits = store.embedded ? group || entry : found.state === "waiting";
  return [
    el("h2", {}, pod),
    el("p", {}, waits ? "waits" : found.node ? ["runs on ", nodeLink(found.node)] : "does not wait", ", ", el("a", { href: "#/waiting" }, "show all pods that wait")),
    waits && group ? groupEntry(group) : waits && entry ? waitingEntry(entry) : null,
  ];
});

const DECISIONS = 50;
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const time = (text) => {
  const [at, today] = [new Date(text), DAY.format(new Date())];
  return el("time", { datetime: text, title: text }, `${DAY.format(at) === today ? "" : `${DAY.format(at)} `}${CLOCK.format(at)}`);
};

const runnersUp = (one) =>
  one.runnersUp.length
    ? el("details", { "data-key": `${one.uid} ${one.time}` }, el("summary", {}, one.runnersUp[0].node, one.runnersUp.length > 1 ? ` and ${one.runnersUp.length - 1} more` : ""),
      el("ul", { class: "would" }, one.runnersUp.map((other) => el("li", {}, nodeLink(other.node), `: ${other.why}`))))
    : NONE;

const decisionRow = (one) => [time(one.time), podLink(one.pod), nodeLink(one.node), orNone(one.numa.join(", ")),
  cpuList(one.cpus), orNone(one.devices.join(", ")), orNone(one.score), runnersUp(one)];

const decisionsView = (main, pod, query) => followed(main, "/api/v1/decisions", (found) => {
  const decisions = found.decisions.filter((one) => !pod || one.pod === pod);
  const pages = Math.max(1, Math.ceil(decisions.length / DECISIONS));
  const page = Math.min(pages, Math.max(1, Math.floor(Number(query.get("page"))) || 1));
  const link = (to, text) => (to < 1 || to > pages ? null : el("a", { href: `#/decisions${pod ? `/${encodeURIComponent(pod)}` : ""}?page=${to}` }, text));
  return [
    el("h2", {}, "Recent decisions"),
    pod ? el("p", {}, `of ${pod}, `, el("a", { href: "#/decisions" }, "show all")) : null,
    decisions.length
      ? table("Recent decisions", ["Time", "Pod", "Node", "NUMA", "CPUs", "By claim", "Score", "Next best nodes"],
        decisions.slice((page - 1) * DECISIONS, page * DECISIONS).map(decisionRow))
      : el("p", { class: "muted" }, pod ? "No recent decision for this pod."
        : store.embedded ? "No scheduler was reachable when this file was written, or it had not placed a pod." : "This scheduler has not placed a pod yet."),
    pages > 1 ? el("nav", { class: "pages", "aria-label": "Pages" }, link(page - 1, "Newer"), el("span", { class: "muted" }, `page ${page} of ${pages}`), link(page + 1, "Older")) : null,
  ];
});
