// Pods that wait: one entry for all pods of one shape, the reason laid onto each NUMA node, and what would make them fit.
const bar = (one) => {
  const share = one.total ? one.free / one.total : 0;
  const need = one.total ? Math.min(1, one.needed / one.total) : 1;
  return el("div", { class: "bar", role: "img", "aria-label": `${one.freeText} of ${one.totalText} free, ${one.neededText} needed` },
    el("i", { style: { width: `${share * 100}%` } }), el("u", { style: { left: `calc(${need * 100}% - 3px)` } }));
};

const closest = (one) => {
  const rows = one.numa.map((part) =>
    [`NUMA ${part.numa}`, part.resource, `${part.freeText} of ${part.totalText}`, part.neededText, bar(part)]);
  return el("div", {}, el("h4", {}, nodeLink(one.node), " ", el("span", { class: "muted" }, one.message)),
    one.detail ? el("p", { class: "muted" }, one.detail) : null,
    rows.length ? table(`NUMA nodes of ${one.node}`, ["NUMA node", "Resource", "Free", "Needed", ""], rows) : null);
};

const waitingEntry = (one) =>
  el("article", { class: "waiting" },
    el("h3", {}, one.pods[0], one.count > 1 ? el("span", { class: "muted" }, ` and ${one.count - 1} more of this shape`) : null),
    el("p", {}, `${one.asks}`, one.policies ? `, ${one.policies}` : "", el("span", { class: "muted" }, `, priority ${one.priority}, waits ${seconds(one.waitedSeconds)}`)),
    el("p", {}, one.why),
    one.claims.length
      ? el("ul", { class: "would", "aria-label": "Resource claims" }, one.claims.map((it) =>
        el("li", {}, `claim ${it.entry}${it.claim ? ` (${it.claim})` : ""}, ${it.state}${it.asks.length ? `: ${it.asks.join("; ")}` : ""}`)))
      : null,
    el("h4", {}, "What would make it fit"),
    one.wouldFit.length
      ? el("ul", { class: "would" }, one.wouldFit.map((way) => el("li", { "data-kind": way.kind }, way.text)))
      : el("p", { class: "muted" }, "No single change of the pod, rebind or eviction was found."),
    one.closest.length ? el("details", { open: true }, el("summary", {}, "Nodes that came closest"), one.closest.map(closest)) : null);

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
        one.domains.map((it) => [it.name, `${it.placed} of ${it.members}`, it.blockedBy || "–", it.why || "–"]))
      : null,
    one.wouldFit.length
      ? [el("h4", {}, "What would make the group fit"), el("ul", { class: "would" }, one.wouldFit.map((way) => el("li", { "data-kind": way.kind }, way.text)))]
      : null,
    el("details", {}, el("summary", {}, `Pods that wait${one.count > one.pods.length ? `, ${one.pods.length} of ${one.count}` : ""}`), el("ul", {}, one.pods.map((pod) => el("li", {}, pod)))),
    one.closest.length ? el("details", {}, el("summary", {}, `Nodes that came closest for ${one.blockedBy}`), one.closest.map(closest)) : null);

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
    fill(main, draw(found));
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
    ? el("div", {}, waitingSummary(found), found.groups.map(groupEntry), found.classes.filter((one) => !one.group).map(waitingEntry))
    : el("p", { class: "ok" }, "No pod waits."),
  found.more ? el("p", { class: "muted" }, `${plural(found.more, "more shape")} not shown.`) : null,
]);

const runnersUp = (one) =>
  one.runnersUp.length
    ? el("ul", { class: "would" }, one.runnersUp.map((other) => el("li", {}, nodeLink(other.node), `: ${other.why}`)))
    : "–";

const decisionsView = (main, pod) => followed(main, "/api/v1/decisions", (found) => [
  el("h2", {}, "Recent decisions"),
  pod ? el("p", {}, `of ${pod}, `, el("a", { href: "#/decisions" }, "show all")) : null,
  found.decisions.some((one) => !pod || one.pod === pod)
    ? table("Recent decisions", ["Time", "Pod", "Node", "NUMA", "CPUs", "By claim", "Score", "Runners-up"], found.decisions.filter((one) => !pod || one.pod === pod).map((one) =>
      [one.time, podLink(one.pod), nodeLink(one.node), one.numa.join(", ") || "–", el("span", { class: "mono" }, one.cpus || "shared"), one.devices.join(", ") || "–", one.score, runnersUp(one)]))
    : el("p", { class: "muted" }, "No decision is on record."),
]);
