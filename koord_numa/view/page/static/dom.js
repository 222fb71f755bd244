// Small helpers: elements whose text is always text, numbers and amounts for people.
const el = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (name === "style") for (const [key, text] of Object.entries(value)) made.style.setProperty(key, text);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
};

// Only what there is: replaceChildren alone would show the word null.
const fill = (parent, ...children) =>
  parent.replaceChildren(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));

const largest = (values) => values.reduce((most, value) => (value > most ? value : most), 0);

const DIGITS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const number = (value) => DIGITS.format(Math.floor(value * 10) / 10);

const UNITS = [["Ti", 2 ** 40], ["Gi", 2 ** 30], ["Mi", 2 ** 20], ["Ki", 2 ** 10]];
const bytes = (value) => {
  for (const [suffix, size] of UNITS) if (value >= size) return number(value / size) + suffix;
  return String(value);
};

// Huge pages are amounts of memory, other devices are counts.
const amount = (name) => (name.startsWith("hugepages-") ? bytes : number);

// An interval where pods hold amounts of an unknown NUMA node.
const range = (least, most, text) => (least === undefined || least === most ? text(most) : `${text(least)}–${text(most)}`);

const seconds = (value) => {
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${Math.round(value / 3600)} h`;
};

// Colors that people with any color vision tell apart, then their tints and shades. More pods than colors share them.
const POD_COLORS = 21;
const podColor = (index) => `p${index % POD_COLORS}`;

const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

const facts = (entries) =>
  el("dl", { class: "facts" }, entries.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

// "0-3,8", or words such as "shared".
const cpuList = (text) => el("span", { class: /^\d/.test(text) ? "mono" : null }, text);

// A column without a value is left out. Roles are explicit, because small screens show the rows as blocks.
const NONE = "–";
const orNone = (text) => (!text || text === "-" ? NONE : text);
const table = (caption, headings, rows) => {
  const used = headings.map((_, at) => at).filter((at) => at === 0 || rows.some((cells) => cells[at] !== NONE));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: "stack", role: "table" },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, used.map((at) => el("th", { scope: "col", role: "columnheader" }, headings[at])))),
      el("tbody", { role: "rowgroup" }, rows.map((cells) => el("tr", { role: "row" }, used.map((at) =>
        el("td", { role: "cell", "data-label": headings[at], class: cells[at] === NONE ? "none" : null }, el("div", {}, cells[at]))))))));
};

// node-2 before node-10.
const natural = new Intl.Collator("en", { numeric: true }).compare;

const podLink = (name) => el("a", { href: `#/pods/${encodeURIComponent(name)}` }, name);
const nodeLink = (name) => el("a", { href: `#/nodes/${encodeURIComponent(name)}` }, name);
