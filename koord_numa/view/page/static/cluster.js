// The cluster: a card for each node with a tile for each NUMA node, colored by the largest aligned request that still fits there.
// Only visible cards are in the document, so that thousands of nodes scroll as easily as ten.
const CARD = { width: 230, line: 34, heights: [90, 104] }; // the amounts are one line of 34 characters, or two
const HEADING = 40;
const GROUPS = 100;
const filters = { text: "", state: "", owner: "", device: "", cpus: "", memory: "", count: "", group: "" };

// Room on one NUMA node: CPUs, GiB of memory, and units of the device by which tiles are colored.
const hasRoom = (node) => {
  const [cpus, memory, count] = [filters.cpus, filters.memory, filters.count].map((text) => Math.max(0, Number(text) || 0));
  if (!cpus && !memory && !count) return true;
  return node.state === "ok" && node.numa.some((numa) => {
    const device = numa.devices[filters.device];
    return numa.fits >= cpus && numa.freeMemory >= memory * 2 ** 30 && (!count || (device && device.free >= count));
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

// Free memory and devices of the node, as "168Gi of 384Gi · 3 of 8 gpu". Pods on unknown NUMA nodes count for the node only.
const otherAmounts = (node) => {
  const sums = new Map([["memory", { free: 0, total: 0 }]]);
  for (const numa of node.numa) {
    for (const [name, it] of [["memory", { free: numa.freeMemory, total: numa.memory }], ...Object.entries(numa.devices)]) {
      const sum = sums.get(name) || { free: 0, total: 0 };
      sums.set(name, { free: sum.free + it.free, total: sum.total + it.total });
    }
  }
  return [...sums].filter(([, it]) => it.total).map(([name, it]) => {
    const text = name === "memory" ? bytes : amount(name);
    return `${text(node.free?.[name] ?? it.free)} of ${text(it.total)} ${name.split("/").pop()}`;
  }).join(" · ");
};

const describeNode = (node) => {
  const numa = node.numa.map((it) => `NUMA ${it.id}: ${number(fits(it))} of ${number(it.cpus)}`).join(", ");
  return [node.name, node.state === "ok" ? "" : node.why || node.state, numa || "no NUMA nodes published", otherAmounts(node)].filter(Boolean).join(", ");
};

const describeNuma = (numa) => [`NUMA ${numa.id}: ${range(numa.freeAtLeast, numa.free, number)} of ${number(numa.cpus)} CPUs free`,
  `${range(numa.freeMemoryAtLeast, numa.freeMemory, bytes)} of ${bytes(numa.memory)} memory`,
  ...Object.entries(numa.devices).map(([name, it]) => `${range(it.freeAtLeast, it.free, amount(name))} of ${amount(name)(it.total)} ${name}`)].join("\n");

const card = (node, top) => {
  const tiles = node.numa.map((numa) =>
    el("span", { class: "numa-tile", title: describeNuma(numa) },
      el("span", { class: `tile l${level(fits(numa), top)}` }, node.numa.length > 8 ? "" : number(fits(numa))),
      el("span", { class: "memory" }, el("i", { style: { width: `${numa.memory ? (numa.freeMemory / numa.memory) * 100 : 0}%` } }))));
  return el("a", { class: "node", href: `#/nodes/${encodeURIComponent(node.name)}`, "aria-label": describeNode(node) },
    el("span", { class: "name" }, el("b", {}, node.name), node.state === "ok" ? null : el("span", { class: "bad" }, node.state)),
    el("span", { class: "tiles", "aria-hidden": "true" }, tiles.length ? tiles : el("span", { class: "muted" }, "no topology")),
    el("span", { class: "amounts", "aria-hidden": "true" }, otherAmounts(node)));
};

const legend = (top) => {
  const steps = [0, 1, 2, 3, 4, 5].map((at) => {
    const from = at === 0 ? 0 : Math.max(1, Math.ceil((top * (at - 1)) / 4.999));
    const to = at === 5 ? top : Math.max(from, Math.ceil((top * at) / 4.999) - 1);
    return el("li", {}, el("span", { class: `swatch l${at}` }), at === 0 ? "nothing fits" : `${from}–${number(to)} CPUs`);
  });
  return [...steps, el("li", {}, el("span", { class: "swatch memory" }, el("i", { style: { width: "60%" } })), "free memory")];
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
  return el("figure", {}, el("figcaption", {}, `${title} `, el("b", {}, total)),
    shape("svg", { viewBox: `0 0 ${SPAN} 24`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${total}` }, shape("path", { d: path })));
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
  read().catch(() => {});
  if (!store.embedded) {
    const timer = setInterval(() => (strip.isConnected ? read().catch(() => {}) : clearInterval(timer)), 30000);
  }
  return strip;
};

// Labels that divide the nodes into at most GROUPS groups, but not into single nodes.
const groupLabels = (nodes) => {
  const found = new Map();
  for (const node of nodes) {
    for (const [key, value] of Object.entries(node.labels)) {
      const values = found.get(key) || new Set();
      if (values.size <= GROUPS) found.set(key, values.add(value));
    }
  }
  return [...found].filter(([, values]) => values.size > 1 && values.size <= GROUPS && values.size < nodes.length).map(([key]) => key).sort(natural);
};

const headingText = (value, nodes) => {
  const [free, cpus] = [nodes.reduce((sum, node) => sum + node.freeCPUs, 0), nodes.reduce((sum, node) => sum + node.cpus, 0)];
  return [el("b", {}, value === undefined ? "without the label" : value || "(empty)"),
    el("span", { class: "muted" }, ` ${plural(nodes.length, "node")}, ${number(free)} of ${number(cpus)} CPUs free`)];
};

const clusterView = (main, query) => {
  for (const name of Object.keys(filters)) if (query.size) filters[name] = query.get(name) || "";
  let top = 0;
  let shown = [];
  let groups = [];
  let rows = [];

  const select = (label, name, texts) => {
    const box = el("select", { name, on: { change: (event) => { filters[name] = event.target.value; refresh(); } } });
    const wrapper = el("label", {}, label, box);
    let drawn = "";
    // Drawn again only when the choices differ: an open list stays open.
    const offer = (values) => {
      const choices = [...new Set([...values, filters[name]])].filter(Boolean).sort(natural);
      wrapper.hidden = !choices.length;
      if (choices.join() !== drawn) fill(box, el("option", { value: "" }, texts("")), choices.map((value) => el("option", { value }, texts(value))));
      drawn = choices.join();
      box.value = filters[name];
    };
    return { wrapper, offer };
  };
  const states = select("State", "state", (value) => value || "all");
  const owners = select("CPUs of", "owner", (value) => ({ "": "all", none: "not known" })[value] ?? value);
  const device = select("Color by", "device", (value) => (value ? `CPUs with ${value}` : "CPUs"));
  const group = select("Group by", "group", (value) => value || "nothing");
  const text = el("input", { type: "search", id: "filter", value: filters.text, placeholder: "name or label=value", autocomplete: "off",
    on: { input: (event) => { filters.text = event.target.value; refresh(); } } });
  const wanted = (label, name) => el("label", {}, label,
    el("input", { type: "number", min: "0", step: "any", name, value: filters[name], on: { input: (event) => { filters[name] = event.target.value; refresh(); } } }));
  const count = wanted("Devices", "count");
  const form = el("form", { class: "filter", on: { submit: (event) => event.preventDefault() } },
    el("label", {}, "Filter", text), states.wrapper, owners.wrapper, group.wrapper,
    el("fieldset", {}, el("legend", {}, "Room on one NUMA node for"), wanted("CPUs", "cpus"), wanted("GiB memory", "memory"), count, device.wrapper));
  const found = el("p", { class: "muted", role: "status" });
  const scale = el("ul", { class: "legend", "aria-label": "CPUs of the largest aligned request that still fits" });
  const list = el("ul", { "aria-label": "Nodes" });
  const pane = el("div", { class: "window", on: { scroll: () => draw() } }, list);

  let height = 0;
  const columns = () => Math.max(1, Math.floor(list.clientWidth / CARD.width));

  // A row is a heading of a group, or cards: positions from `first` to `last` of the shown nodes.
  const place = () => {
    const across = columns();
    let y = 0;
    height = CARD.heights[shown.some((node) => otherAmounts(node).length > CARD.line) ? 1 : 0];
    rows = [];
    for (const { value, first, last, heading } of groups) {
      if (heading) {
        rows.push({ y, height: HEADING, text: headingText(value, shown.slice(first, last)) });
        y += HEADING;
      }
      for (let at = first; at < last; at += across, y += height) rows.push({ y, height, first: at, last: Math.min(last, at + across) });
    }
    list.style.height = `${y}px`;
  };
  const draw = () => {
    const width = list.clientWidth / columns();
    const [from, to] = [pane.scrollTop - 2 * height, pane.scrollTop + pane.clientHeight + 2 * height];
    const active = document.activeElement && document.activeElement.closest && document.activeElement.closest("li[data-at]");
    const focused = active ? active.dataset.at : null;
    const items = [];
    for (const row of rows) {
      if (row.y + row.height < from || row.y > to) continue;
      if (row.text) items.push(el("li", { class: "heading", style: { top: `${row.y}px` } }, el("h3", {}, row.text)));
      for (let at = row.first; at < row.last; at += 1) {
        items.push(el("li", { "data-at": at, "aria-setsize": shown.length, "aria-posinset": at + 1, style: {
          left: `${(at - row.first) * width}px`, top: `${row.y}px`, width: `${width}px`, height: `${height}px` } },
        card(shown[at], top)));
      }
    }
    list.replaceChildren(...items);
    if (focused !== null) focusOn(Number(focused), false);
  };
  const focusOn = (at, scroll = true) => {
    const row = rows.find((it) => it.first <= at && at < it.last);
    if (!row) return;
    if (scroll) {
      if (row.y < pane.scrollTop) pane.scrollTop = row.y;
      if (row.y + height > pane.scrollTop + pane.clientHeight) pane.scrollTop = row.y + height - pane.clientHeight;
      draw();
    }
    const link = list.querySelector(`li[data-at="${at}"] a`);
    if (link) link.focus({ preventScroll: true });
  };
  const sums = el("div", {});
  const moves = el("div", {});

  const groupNodes = () => {
    const byValue = new Map();
    for (const node of shown) {
      const value = node.labels[filters.group];
      if (!byValue.has(value)) byValue.set(value, []);
      byValue.get(value).push(node);
    }
    const values = [...byValue.keys()].sort((one, other) => (one === undefined) - (other === undefined) || natural(one, other));
    shown = [];
    groups = values.map((value) => {
      const first = shown.length;
      shown.push(...byValue.get(value));
      return { value, first, last: shown.length, heading: true };
    });
  };
  const refresh = () => {
    const { nodes, summary, more } = store.cluster;
    const devices = [...new Set(nodes.flatMap((node) => node.numa.flatMap((numa) => Object.keys(numa.devices))))].sort(natural);
    // A number of devices needs their name.
    if (filters.count && !filters.device) filters.device = devices[0] || "";
    states.offer(nodes.map((node) => node.state));
    owners.offer(nodes.map((node) => node.cpusOf));
    device.offer(devices);
    count.hidden = !devices.length;
    group.offer(groupLabels(nodes));
    top = largest(nodes.map((node) => largest(node.numa.map((numa) => numa.cpus))));
    fill(scale, legend(top));
    const known = (value) => (more ? "…" : value);
    fill(sums, facts([["Nodes", number(summary.nodes + (more || 0))], ["CPUs free", known(`${number(summary.freeCPUs)} of ${number(summary.cpus)}`)],
      ["Largest aligned request", known(summary.largest || "none")], ["Pods that wait", number(summary.waiting)]]));
    const reported = store.cluster.moves || [];
    fill(moves, reported.length
      ? [el("h3", {}, "Moves that gather free devices"),
        el("ul", { "aria-label": "Moves that gather free devices" }, reported.map((move) => el("li", {}, move.text)))]
      : null);
    shown = nodes.filter(matches);
    const asked = filters.cpus || filters.memory || filters.count;
    found.textContent = !nodes.length ? "No node is known. Nodes appear when their Node objects are read."
      : `${number(shown.length)} of ${plural(nodes.length, "node")}${more ? `, reading ${number(more)} more` : ""}` +
        `${asked ? " with this room on one NUMA node; taints and other rules of a pod are not considered" : ""}`;
    pane.hidden = !shown.length;
    form.hidden = scale.hidden = !nodes.length;
    groups = [{ first: 0, last: shown.length }];
    if (filters.group) groupNodes();
    const set = Object.entries(filters).filter(([, value]) => value);
    const hash = `#/cluster${set.length ? `?${new URLSearchParams(set)}` : ""}`;
    if (route().view === "cluster" && location.hash !== hash && (location.hash || set.length)) history.replaceState(null, "", hash);
    place();
    draw();
  };
  list.addEventListener("keydown", (event) => {
    const item = event.target.closest("li[data-at]");
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns() }[event.key];
    if (!item || step === undefined) return;
    event.preventDefault();
    focusOn(Number(item.dataset.at) + step);
  });

  fill(main, el("h2", {}, "Cluster"), sums, historyStrip(), form, scale, found, pane, moves);
  refresh();
  return { update: refresh, resize: () => { place(); draw(); }, search: () => text.focus() };
};
