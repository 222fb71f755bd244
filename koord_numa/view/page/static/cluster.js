// The cluster: a card for each node with a tile for each NUMA node, coloured by the largest aligned request that still fits there.
// Only cards that can be seen are in the document, so that thousands of nodes scroll as easily as ten.
const CARD = { width: 230, height: 74 };
const filters = { text: "", state: "", owner: "", device: "", cpus: "", memory: "", count: "" };

// Room on one NUMA node: CPUs, GiB of memory, and units of the device by which tiles are coloured.
const hasRoom = (node) => {
  const [cpus, memory, count] = [filters.cpus, filters.memory, filters.count].map((text) => Math.max(0, Number(text) || 0));
  if (!cpus && !memory && !count) return true;
  return node.state === "ok" && node.numa.some((one) => {
    const device = one.devices[filters.device];
    return one.fits >= cpus && one.freeMemory >= memory * 2 ** 30 && (!count || (device && device.free >= count));
  });
};

const fits = (numa) => {
  if (!filters.device) return numa.fits;
  const device = numa.devices[filters.device];
  return device && device.free > 0 ? numa.fits : 0;
};

const level = (value, top) => (value <= 0 || top <= 0 ? 0 : Math.min(5, 1 + Math.floor((value / top) * 4.999)));

const matches = (node) => {
  if (filters.state && node.state !== filters.state) return false;
  if (filters.owner && node.cpusOf !== filters.owner) return false;
  if (!hasRoom(node)) return false;
  return filters.text.split(/[\s,]+/).filter(Boolean).every((word) => {
    const [key, value] = word.split("=", 2);
    if (value === undefined) return node.name.includes(word) || Object.values(node.labels).includes(word);
    return node.labels[key] === value;
  });
};

const describeNode = (node) => {
  const numa = node.numa.map((one) => `NUMA ${one.id}: ${number(fits(one))} of ${number(one.cpus)}`).join(", ");
  return `${node.name}, ${node.state === "ok" ? "" : `${node.why || node.state}, `}${numa || "no NUMA nodes published"}`;
};

const card = (node, top) => {
  const tiles = node.numa.map((one) =>
    el("span", { class: `tile l${level(fits(one), top)}`, title: `NUMA ${one.id}: ${range(one.freeAtLeast, one.free, number)} of ${number(one.cpus)} CPUs free` },
      node.numa.length > 8 ? "" : number(fits(one))));
  return el("a", { class: "node", href: `#/nodes/${encodeURIComponent(node.name)}`, "aria-label": describeNode(node) },
    el("span", { class: "name" }, el("b", {}, node.name), node.state === "ok" ? null : el("span", { class: "bad" }, node.state)),
    el("span", { class: "tiles", "aria-hidden": "true" }, tiles.length ? tiles : el("span", { class: "muted" }, "no topology")));
};

const legend = (top) => {
  const steps = [0, 1, 2, 3, 4, 5].map((at) => {
    const from = at === 0 ? 0 : Math.max(1, Math.ceil((top * (at - 1)) / 4.999));
    const to = at === 5 ? top : Math.max(from, Math.ceil((top * at) / 4.999) - 1);
    return el("li", {}, el("span", { class: `swatch l${at}` }), at === 0 ? "nothing fits" : `${from}–${number(to)}`);
  });
  return el("ul", { class: "legend", "aria-label": "CPUs of the largest aligned request that still fits" }, steps);
};

// The last hour: a bar for each sample, the newest at the right.
const SPAN = 120;
const shape = (name, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

const bars = (title, total, values) => {
  const top = largest(values) || 1;
  const path = values.map((value, at) => (value ? `M${SPAN - values.length + at} 24V${24 - (value / top) * 24}h.8V24` : "")).join("");
  const text = `${title}: ${total}`;
  return el("figure", {}, el("figcaption", {}, `${title} `, el("b", {}, total)),
    shape("svg", { viewBox: `0 0 ${SPAN} 24`, preserveAspectRatio: "none", role: "img", "aria-label": text }, shape("path", { d: path })));
};

const historyStrip = () => {
  const strip = el("section", { class: "history", "aria-label": "The last hour" });
  const sum = (values) => values.reduce((all, value) => all + value, 0);
  const read = async () => {
    const found = await store.read("/api/v1/history");
    const span = seconds(found.sampleSeconds * found.largest.length);
    const [least, most] = [Math.min(...found.largest), largest(found.largest)];
    fill(strip, bars("Scheduled", `${number(sum(found.scheduled))} in ${span}`, found.scheduled),
      bars("Rejected", `${number(sum(found.rejected))} in ${span}`, found.rejected),
      bars("Largest aligned request", `${least === most ? "" : `${number(least)}–`}${number(most)} CPU`, found.largest));
  };
  if (!store.embedded) {
    read().catch(() => {});
    const timer = setInterval(() => (strip.isConnected ? read().catch(() => {}) : clearInterval(timer)), 30000);
  }
  return strip;
};

const clusterView = (main, query) => {
  for (const name of Object.keys(filters)) if (query.size) filters[name] = query.get(name) || "";
  const top = largest(store.cluster.nodes.map((node) => largest(node.numa.map((one) => one.cpus))));
  const states = [...new Set(store.cluster.nodes.map((node) => node.state))].sort();
  const devices = [...new Set(store.cluster.nodes.flatMap((node) => node.numa.flatMap((one) => Object.keys(one.devices))))].sort();
  let shown = [];

  const select = (label, name, options) =>
    el("label", {}, label,
      el("select", { name, on: { change: (event) => { filters[name] = event.target.value; refresh(); } } },
        options.map(([value, text]) => el("option", { value, selected: filters[name] === value }, text))));
  const text = el("input", { type: "search", id: "filter", value: filters.text, placeholder: "name or label=value", autocomplete: "off",
    on: { input: (event) => { filters.text = event.target.value; refresh(); } } });
  const wanted = (label, name) => el("label", {}, label,
    el("input", { type: "number", min: "0", step: "any", name, value: filters[name], on: { input: (event) => { filters[name] = event.target.value; refresh(); } } }));
  const found = el("p", { class: "muted", role: "status" });
  const list = el("ul", { "aria-label": "Nodes" });
  const pane = el("div", { class: "window", on: { scroll: () => draw() } }, list);

  const columns = () => Math.max(1, Math.floor(list.clientWidth / CARD.width));
  const draw = () => {
    const across = columns();
    const width = list.clientWidth / across;
    const first = Math.max(0, Math.floor(pane.scrollTop / CARD.height) - 2) * across;
    const last = Math.min(shown.length, (Math.ceil((pane.scrollTop + pane.clientHeight) / CARD.height) + 2) * across);
    const active = document.activeElement && document.activeElement.closest && document.activeElement.closest("li[data-at]");
    const focused = active ? active.dataset.at : null;
    list.style.height = `${Math.ceil(shown.length / across) * CARD.height}px`;
    const items = [];
    for (let at = first; at < last; at += 1) {
      items.push(el("li", { "data-at": at, "aria-setsize": shown.length, "aria-posinset": at + 1, style: {
        left: `${(at % across) * width}px`, top: `${Math.floor(at / across) * CARD.height}px`, width: `${width}px`, height: `${CARD.height}px` } },
      card(shown[at], top)));
    }
    list.replaceChildren(...items);
    if (focused !== null) focusOn(Number(focused), false);
  };
  const focusOn = (at, scroll = true) => {
    if (at < 0 || at >= shown.length) return;
    if (scroll) {
      const y = Math.floor(at / columns()) * CARD.height;
      if (y < pane.scrollTop) pane.scrollTop = y;
      if (y + CARD.height > pane.scrollTop + pane.clientHeight) pane.scrollTop = y + CARD.height - pane.clientHeight;
      draw();
    }
    const link = list.querySelector(`li[data-at="${at}"] a`);
    if (link) link.focus({ preventScroll: true });
  };
  const sums = el("div", {});
  const moves = el("div", {});
  const refresh = () => {
    // A number of devices needs their name.
    if (filters.count && !filters.device && devices.length) {
      [filters.device] = devices;
      main.querySelector("select[name=device]").value = filters.device;
    }
    const { summary } = store.cluster;
    fill(sums, facts([["Nodes", String(summary.nodes)], ["CPUs free", `${number(summary.freeCPUs)} of ${number(summary.cpus)}`],
      ["Largest aligned request", summary.largest || "none"], ["Pods that wait", String(summary.waiting)]]));
    const reported = store.cluster.moves || [];
    fill(moves, reported.length
      ? [el("h3", {}, "Moves that gather free devices"),
        el("ul", { "aria-label": "Moves that gather free devices" }, reported.map((move) => el("li", {}, move.text)))]
      : null);
    shown = store.cluster.nodes.filter(matches);
    const asked = filters.cpus || filters.memory || filters.count;
    found.textContent = !store.cluster.nodes.length ? "No node is known. Nodes appear when their Node objects are read."
      : `${shown.length} of ${plural(store.cluster.nodes.length, "node")}${asked ? " with this room on one NUMA node; taints and other rules of a pod are not considered" : ""}`;
    const set = Object.entries(filters).filter(([, value]) => value);
    const hash = `#/cluster${set.length ? `?${new URLSearchParams(set)}` : ""}`;
    if (route().view === "cluster" && location.hash !== hash && (location.hash || set.length)) history.replaceState(null, "", hash);
    draw();
  };
  list.addEventListener("keydown", (event) => {
    const item = event.target.closest("li[data-at]");
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns() }[event.key];
    if (!item || step === undefined) return;
    event.preventDefault();
    focusOn(Number(item.dataset.at) + step);
  });

  fill(main,
    el("h2", {}, "Cluster"),
    sums,
    historyStrip(),
    el("form", { class: "filter", on: { submit: (event) => event.preventDefault() } },
      el("label", {}, "Filter", text),
      select("State", "state", [["", "all"], ...states.map((one) => [one, one])]),
      select("CPUs of", "owner", [["", "all"], ["scheduler", "scheduler"], ["kubelet", "kubelet"], ["none", "not known"]]),
      devices.length ? select("Color by", "device", [["", "CPUs"], ...devices.map((one) => [one, `CPUs with ${one}`])]) : null,
      el("fieldset", {}, el("legend", {}, "Room on one NUMA node for"), wanted("CPUs", "cpus"), wanted("GiB memory", "memory"),
        devices.length ? wanted("devices", "count") : null)),
    legend(top), found, pane, moves);
  refresh();
  return { update: refresh, resize: draw, search: () => text.focus() };
};
