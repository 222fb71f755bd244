// One node, as lstopo draws it: socket, NUMA node, L3, core, thread. One color per pod; CPUs whose observed pod differs stand out.
const cpuCell = (cpu, pods, chosen) => {
  const holders = cpu.pods.map((at) => pods[at].pod);
  const observed = cpu.observed.map((at) => pods[at].pod);
  const differs = cpu.observedKnown && holders.join() !== observed.join();
  const state = holders.length > 1 ? "contested" : holders.length ? "held" : cpu.reserved ? "reserved" : "free";
  const title = `CPU ${cpu.id}: ${holders.length ? holders.join(" and ") : state}${differs ? `; observed: ${observed.join(" and ") || "no pod"}` : ""}`;
  const classes = ["cpu", state, differs ? "differs" : "", holders.length === 1 ? podColor(cpu.pods[0]) : "", holders.includes(chosen) ? "chosen" : ""];
  return el("span", { class: classes.filter(Boolean).join(" "), title, "data-cpu": cpu.id }, String(cpu.id));
};

// Eight cores a row, fewer where cores have more than two threads, and half as many threads on a small screen.
const across = (cores, threads) => String(Math.max(1, Math.min(8, Math.floor(threads / largest(cores.map((core) => core.cpus.length))) || 1)));

const deviceBox = (one) =>
  el("span", { class: `device ${one.claims.length ? "held" : ""}`, title: `${one.driver}, pool ${one.pool}` },
    `${one.device}: ${one.claims.join(", ") || "free"}${one.taints.map((it) => `, tainted ${it}`).join("")}`);

const numaBox = (numa, node, chosen) => {
  const pods = [...node.pods, ...node.unusedClaims.map((one) => ({ pod: `claim ${one.claim}` }))];
  const published = node.devices.filter((one) => one.numa === numa.id);
  return el("section", { class: "numa", "data-numa": numa.id, "aria-label": `NUMA node ${numa.id}` },
    el("h4", {}, `NUMA ${numa.id}`, " ", el("span", { class: "muted" },
      `${range(Math.min(numa.freeAtLeast ?? numa.freeCPUs, numa.freeCPUs), numa.freeCPUs, number)} of ${number(numa.cpus)} CPUs free, ` +
      `${range(numa.freeMemoryAtLeast, numa.freeMemory, bytes)} of ${bytes(numa.memory)} memory`)),
    numa.caches.length ? null : el("div", { class: "bar" }, el("i", { style: { width: `${numa.cpus ? (numa.freeCPUs / numa.cpus) * 100 : 0}%` } })),
    el("div", { class: "caches" }, numa.caches.map((cache) =>
      el("div", { class: "cache" }, numa.caches.length > 1 ? el("div", { class: "muted" }, `L3 ${cache.id}`) : null,
        el("div", { class: "cores", style: { "--across": across(cache.cores, 16), "--narrow": across(cache.cores, 8) } }, cache.cores.map((core) =>
          el("span", { class: "core", title: `core ${core.id}` }, core.cpus.map((cpu) => cpuCell(cpu, pods, chosen)))))))),
    published.length ? el("div", { class: "devices claimable" }, published.map(deviceBox)) : null,
    Object.keys(numa.devices).length
      ? el("div", { class: "devices" }, Object.entries(numa.devices).map(([name, it]) =>
        el("span", { class: "device" }, `${name}: ${range(it.freeAtLeast, it.free, amount(name))} of ${amount(name)(it.total)} free`)))
      : null);
};

// CPUs that are not known by id have no socket.
const socketName = (socket) => (socket.id === null ? "NUMA nodes" : `Socket ${socket.id}`);

const cpuLegend = () =>
  el("ul", { class: "legend", "aria-label": "Legend" }, [["free", "free"], ["held", "held by a pod, in its color"], ["reserved", "reserved for the system"],
    ["contested", "held by several pods"], ["free differs", "observed pod differs"]].map(([kind, text]) =>
    el("li", {}, el("span", { class: `swatch ${kind} ${podColor(0)}` }), text)));

const drawing = (node, chosen) =>
  el("div", { class: "machine" }, node.machine.sockets.map((socket) =>
    el("section", { class: socket.id === null ? "socket plain" : "socket", "aria-label": socketName(socket) }, el("h3", {}, socketName(socket)),
      socket.numa.map((numa) => numaBox(numa, node, chosen)))));

// The machine with pods on the CPUs that a plan gives them, or took from them when it is done.
const planned = (machine, pods, plan, side) => {
  const holders = new Map();
  pods.forEach((pod, at) => {
    const move = plan.find((one) => one.pod === pod.pod);
    for (const cpu of move ? move[side] : pod.cpuIds) holders.set(cpu, [...(holders.get(cpu) || []), at]);
  });
  const cpu = (one) => ({ ...one, pods: holders.get(one.id) || [], observedKnown: false });
  const numa = (one) => ({ ...one, caches: one.caches.map((cache) => ({ ...cache, cores: cache.cores.map((core) => ({ ...core, cpus: core.cpus.map(cpu) })) })) });
  return { ...machine, sockets: machine.sockets.map((socket) => ({ ...socket, numa: socket.numa.map(numa) })) };
};

// The nearer, the stronger the color, as for free room.
const distanceTable = (machine) => {
  const ids = machine.sockets.flatMap((socket) => socket.numa.map((numa) => numa.id));
  const known = Object.values(machine.distances);
  if (ids.length < 2 || !known.length) return null;
  const [near, far] = [Math.min(...known), largest(known)];
  const heat = (value) => (value === undefined ? null : `l${far > near ? 5 - Math.round(((value - near) / (far - near)) * 4) : 5}`);
  return [el("h3", {}, "Distances between NUMA nodes"),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Distances between NUMA nodes" },
      el("table", { class: "heat" },
        el("thead", {}, el("tr", {}, el("td", {}), ids.map((to) => el("th", { scope: "col" }, `NUMA ${to}`)))),
        el("tbody", {}, ids.map((from) => el("tr", {}, el("th", { scope: "row" }, `NUMA ${from}`),
          ids.map((to) => machine.distances[`${from}-${to}`]).map((value) => el("td", { class: heat(value) }, String(value ?? "–"))))))))];
};

const podRow = (chosen) => (pod, at) => [
  [pod.cpuIds.length ? el("span", { class: `dot ${podColor(at)}` }) : null,
    el("a", { href: `#/decisions/${encodeURIComponent(pod.pod)}`, title: "its decision", class: pod.pod === chosen ? "chosen" : null }, pod.pod)],
  orNone(pod.qos), orNone(pod.asks), orNone(pod.policies), orNone(pod.numa.join(", ")), cpuList(pod.cpus),
  pod.observed === null ? NONE : el("span", { class: `mono ${pod.observed === pod.cpus ? "" : "bad"}` }, pod.observed),
];

const claimRow = (one) => [
  one.claim, one.pods.length ? one.pods.flatMap((pod, at) => (at ? [", ", podLink(pod)] : [podLink(pod)])) : NONE, orNone(one.numa.join(", ")),
  el("ul", { class: "would" }, one.devices.map((it) =>
    el("li", {}, `${it.driver} ${it.device}${it.cpus ? ` (${it.cpus} CPUs)` : ""}${it.numa === null ? "" : `, NUMA ${it.numa}`}${it.adminAccess ? ", admin access" : ""}`))),
  one.cpus ? el("span", { class: "mono" }, one.cpus) : NONE, one.state,
];

const switchRow = (one) => [
  one.numa === null ? "–" : String(one.numa), el("span", { class: "mono" }, one.pcie || "–"),
  el("div", { class: "devices" }, one.devices.map((it) =>
    el("span", { class: `device ${it.pods.length ? "held" : ""}`, title: it.id },
      `${it.type} ${it.minor}: ${it.healthy ? it.pods.join(", ") || "free" : "unhealthy"}${it.pods.length && it.freePercent ? `, ${it.freePercent} % free` : ""}`))),
];

const byId = (found) => [
  el("h3", {}, "Devices by id"),
  found.problem ? el("p", { class: "bad" }, found.problem) : null,
  table("Devices by id", ["NUMA", "PCIe switch", "Devices"], found.switches.map(switchRow)),
  Object.keys(found.freeGroups).length
    ? el("p", {}, `Free groups of GPUs: ${Object.entries(found.freeGroups).reverse().map(([size, count]) => `${count} of ${size}`).join(", ")}; largest: ${Math.max(0, ...Object.entries(found.freeGroups).filter(([, count]) => count).map(([size]) => Number(size)))}`)
    : null,
];

// What runs on a CPU: its number is entered, or the CPU is clicked in a drawing.
const cpuForm = (node, asked) => {
  const answer = el("output", {});
  const input = el("input", { type: "number", min: "0", name: "cpu", value: asked });
  const places = new Map(node.machine.sockets.flatMap((socket) => socket.numa.flatMap((numa) => numa.caches.flatMap((cache) => cache.cores.flatMap((core) =>
    core.cpus.map((cpu) => [String(cpu.id), { cpu, text: `CPU ${cpu.id} (core ${core.id}, NUMA ${numa.id}, ${socketName(socket)}): ` }]))))));
  const holders = [...node.pods.map((pod) => podLink(pod.pod)), ...node.unusedClaims.map((it) => `claim ${it.claim}`)];
  const tell = () => {
    const place = places.get(input.value);
    for (const cell of document.querySelectorAll(".cpu")) cell.classList.toggle("asked", Boolean(place) && cell.dataset.cpu === input.value);
    fill(answer, !input.value ? null : !place ? `${node.name} has no CPU ${input.value}.`
      : [place.text, ...place.cpu.pods.flatMap((at, count) => (count ? [" and ", holders[at]] : [holders[at]])),
        place.cpu.pods.length ? null : place.cpu.reserved ? "reserved for the system" : "free for pods, or shared by pods without CPUs of their own"]);
    const query = new URLSearchParams(location.hash.split("?", 2)[1] || "");
    if (input.value) query.set("cpu", input.value);
    else query.delete("cpu");
    history.replaceState(null, "", `#/nodes/${encodeURIComponent(node.name)}${query.size ? `?${query}` : ""}`);
  };
  input.addEventListener("input", tell);
  return { form: el("form", { class: "filter", on: { submit: (event) => event.preventDefault() } }, el("label", {}, "What runs on CPU", input), answer), tell,
    choose: (event) => {
      const cell = event.target.closest(".cpu");
      if (!cell) return;
      input.value = cell.dataset.cpu;
      tell();
    } };
};

const nodeView = async (main, name, query) => {
  const chosen = query.get("pod");
  const here = location.hash;
  const node = await store.read(`/api/v1/nodes/${encodeURIComponent(name)}`);
  if (location.hash !== here) return current;
  const plan = (node.rebind && node.rebind.plan) || [];
  const byNumber = node.machine && node.machine.sockets.some((socket) => socket.id !== null) ? cpuForm(node, query.get("cpu")) : null;
  const typing = document.activeElement && document.activeElement.name === "cpu";
  fill(main,
    el("p", {}, el("a", { href: "#/cluster" }, "← Cluster")),
    el("h2", {}, node.name),
    node.why ? el("p", { class: "bad" }, node.why) : null,
    facts([["CPUs of", node.cpusOf === "none" ? "not known" : node.cpusOf], ["Policy", node.policy || "none"], ["Scope", node.scope || "–"],
      ["Largest aligned request", node.largest || "none"], ["Pods counted", number(node.pods.length)]]),
    byNumber ? byNumber.form : null,
    node.machine ? drawing(node, chosen) : el("p", { class: "muted" }, "No NUMA nodes are published for this node."),
    byNumber ? cpuLegend() : null,
    node.machine ? distanceTable(node.machine) : null,
    plan.length && node.machine
      ? el("section", { id: "rebind" }, el("h3", {}, `${node.rebind.done ? "Before" : "After"} RebindResource ${node.rebind.name} (${node.rebind.phase})`),
        drawing({ ...node, machine: planned(node.machine, node.pods, plan, node.rebind.done ? "from" : "to") }))
      : null,
    el("h3", {}, "Pods"),
    node.pods.length ? table("Pods", ["Pod", "QoS", "Asks for", "Policy", "NUMA", "CPUs decided", "CPUs observed"], node.pods.map(podRow(chosen)))
      : el("p", { class: "muted" }, "No pod is counted on this node."),
    node.devicesById ? byId(node.devicesById) : null,
    node.claims.length
      ? [el("h3", {}, "Resource claims"),
        table("Resource claims", ["Claim", "Pods", "NUMA", "Devices", "CPUs by claim", "State"], node.claims.map(claimRow))]
      : null);
  if (byNumber) {
    main.querySelector(".machine").addEventListener("click", byNumber.choose);
    byNumber.tell();
    if (typing) main.querySelector("input[name=cpu]").focus();
  }
  return { update: (change) => { if (!change.nodes || change.nodes.some((it) => it.name === name)) show(); } };
};
