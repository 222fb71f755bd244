// Where the views get their documents: from the scheduler that serves this page, or from the page itself when it was written to a file.
const UNKNOWN = "is not known to this scheduler";
const store = {
  embedded: document.documentElement.dataset.source === "file",
  cluster: null,
  listeners: new Set(),

  async read(path) {
    if (this.embedded) {
      const found = document.getElementById(`doc:${path}`);
      if (!found) throw new Error(UNKNOWN);
      return JSON.parse(found.textContent);
    }
    const answer = await fetch(`.${path}`, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(answer.status === 404 ? UNKNOWN : `the scheduler answers ${answer.status}`);
    return answer.json();
  },

  // Pods whose name contains a text, with their nodes.
  async find(text) {
    if (!this.embedded) return this.read(`/api/v1/pods?search=${encodeURIComponent(text)}`);
    const found = [];
    for (const { name } of this.cluster.nodes) {
      const view = document.getElementById(`doc:/api/v1/nodes/${encodeURIComponent(name)}`);
      for (const { pod } of view ? JSON.parse(view.textContent).pods : []) if (pod.includes(text)) found.push({ pod, node: name });
    }
    const waiting = document.getElementById("doc:/api/v1/waiting");
    for (const { pods } of waiting ? JSON.parse(waiting.textContent).classes : [])
      for (const pod of pods) if (pod.includes(text)) found.push({ pod, node: "" });
    return { items: found, more: 0 };
  },

  load(cluster) {
    this.cluster = cluster;
    this.sort();
  },

  // The first nodes are part of the page: they are shown while the scheduler prepares the others.
  loadFirst() {
    this.load(JSON.parse(document.getElementById("doc:/api/v1/cluster").textContent));
  },

  // Listeners get a change without nodes: every node may be different.
  async reload() {
    this.load(await this.read("/api/v1/cluster"));
    for (const listener of this.listeners) listener({});
  },

  sort() {
    this.cluster.nodes.sort((a, b) => natural(a.name, b.name));
    this.byName = new Map(this.cluster.nodes.map((node, at) => [node.name, at]));
  },

  apply(change) {
    const gone = new Set(change.removed || []);
    let other = gone.size > 0;
    for (const node of change.nodes || []) {
      const at = this.byName.get(node.name);
      if (at === undefined) other = this.cluster.nodes.push(node) > 0;
      else this.cluster.nodes[at] = node;
    }
    if (gone.size) this.cluster.nodes = this.cluster.nodes.filter((node) => !gone.has(node.name));
    // A message may arrive before all nodes have.
    if (change.summary && !this.cluster.more) this.cluster.summary = change.summary;
    if (change.moves) this.cluster.moves = change.moves;
    if (other) this.sort();
    for (const listener of this.listeners) listener(change);
  },

  live(say) {
    if (this.embedded) {
      say(`as of ${this.cluster.generatedAt}`);
      return;
    }
    const source = new EventSource("./api/v1/events");
    const lost = () => say("not connected; trying again");
    // Changes before the stream opened, or while it was interrupted, were not sent.
    source.addEventListener("open", () => this.reload().then(() => say("live"), lost));
    source.addEventListener("error", () => {
      lost();
      // The stream may be refused, because too many pages are open.
      if (this.cluster.more) this.reload().catch(lost);
    });
    source.addEventListener("change", (event) => this.apply(JSON.parse(event.data)));
    source.addEventListener("reload", () => this.reload().catch(lost));
  },
};
