// The data flow of both sides as one tree of nodes: what is seen of it when some calls are open and others are not.

export const [CALL, CODE, INPUT] = [0, 1, 2];
const NONE = -1;
const MOST = 14; // of the calls inside one, that are all shown
const AROUND = 2; // before and behind what is looked at, where there are more
const FEW = 2; // uses of what learns nothing, up to which it is drawn
const PARTS = 12; // that a long run falls into

/** Nodes of both sides: those of A with their twins of B, and those that B alone has. */
export class Flow {
  constructor(doc) {
    const { a, b, twin } = doc;
    this.sides = { a, b };
    this.size = a.kind.length;
    this.a = a.kind.map((_, i) => i);
    this.b = new Array(this.size).fill(NONE);
    this.of = { a: this.a, b: (twin ?? []).slice() };
    (twin ?? []).forEach((i, j) => {
      if (i >= 0) this.b[i] = j;
      else {
        this.of.b[j] = this.size++;
        this.a.push(NONE);
        this.b.push(j);
      }
    });
    this._order();
    this._dissolve();
    this._adopt();
    this.edges = ["a", "b"].flatMap((side) => this._edges(side));
  }

  side(u) {
    return this.a[u] >= 0 ? "a" : "b";
  }

  /** A column of a node, as the first side that has it says it. */
  get(name, u) {
    const side = this.side(u);
    return this.sides[side][name][this[side][u]];
  }

  isCall(u) {
    return this.get("kind", u) === CALL;
  }

  /** When a node of B alone comes: behind what it follows there. */
  _order() {
    this.order = this.a.map((i) => i);
    let last = -1;
    (this.of.b ?? []).forEach((u) => {
      if (this.a[u] >= 0) last = Math.max(last, this.a[u]);
      else this.order[u] = last + 0.5;
    });
  }

  _outer(u, side) {
    const i = this[side][u];
    const at = i < 0 ? NONE : this.sides[side].parent[i];
    return at < 0 ? NONE : this.of[side][at];
  }

  /** A call of one side alone, around others that both sides have, is no node: what it holds stands where the other side has it. */
  _dissolve() {
    this.isDissolved = new Uint8Array(this.size);
    if (!this.sides.b) return;
    for (let u = 0; u < this.size; u++) {
      if (this.a[u] < 0 || this.b[u] < 0) continue;
      for (const side of ["a", "b"]) {
        for (let up = this._outer(u, side); up >= 0; up = this._outer(up, side)) {
          if ((this.a[up] < 0 || this.b[up] < 0) && this.isCall(up)) this.isDissolved[up] = 1;
        }
      }
    }
  }

  _adopt() {
    this.parent = new Int32Array(this.size).fill(NONE);
    this.children = Array.from({ length: this.size }, () => []);
    this.tops = [];
    for (let u = 0; u < this.size; u++) {
      if (this.isDissolved[u]) continue;
      const side = this.side(u);
      let up = this._outer(u, side);
      while (up >= 0 && this.isDissolved[up]) up = this._outer(up, side);
      this.parent[u] = up;
      (up >= 0 ? this.children[up] : this.tops).push(u);
    }
    const inOrder = (x, y) => this.order[x] - this.order[y] || x - y;
    this.children.forEach((each) => each.sort(inOrder));
    this.tops.sort(inOrder);
  }

  _edges(side) {
    const from = this.sides[side];
    if (!from) return [];
    return from.source.map((source, k) => ({
      source: this.of[side][source], target: this.of[side][from.target[k]], tensor: from.of[k], isKnown: from.is_known[k] === 1, learns: from.learns[k] === 1, isAround: from.is_around[k] === 1, side,
    }));
  }

  ancestors(u) {
    const found = [];
    for (let up = this.parent[u]; up >= 0; up = this.parent[up]) found.unshift(up);
    return found;
  }

  /** The calls of the program itself. */
  get roots() {
    return this.tops.filter((u) => this.isCall(u));
  }

  /** The node of a call: of the module of one side with this index. */
  callOf(side, module, number = 0) {
    if (!this.sides[side]) return NONE;
    this._calls ??= {};
    this._calls[side] ??= new Map(this.sides[side].kind.map((kind, i) => [kind === CALL ? `${this.sides[side].module[i]} ${this.sides[side].call[i]}` : `#${i}`, i]));
    const at = this._calls[side].get(`${module} ${number}`);
    return at === undefined ? NONE : this.of[side][at];
  }

  /**
   * What is seen: nodes, calls that are open, runs of calls that are folded into one, and who stands for a node that is not seen.
   *
   * open: the calls whose inside is seen; near: what is looked at, of which the surroundings are; opened: runs that are not folded.
   */
  seen(open, near, opened) {
    const look = { items: [], boxes: [], stands: new Int32Array(this.size).fill(NONE) };
    const isNear = new Set(near.flatMap((u) => [u, ...this.ancestors(u)]));
    const visit = (list, box) => {
      for (const item of folded(list, isNear, opened, box)) {
        if (item.run) {
          const at = look.items.push({ ...item, box }) - 1;
          item.run.forEach((u) => this._standFor(u, at, look.stands));
        } else if (open.has(item.node) && this.children[item.node].length) {
          look.boxes.push({ node: item.node, box });
          visit(this.children[item.node], item.node);
        } else {
          const at = look.items.push({ node: item.node, box }) - 1;
          this._standFor(item.node, at, look.stands);
        }
      }
    };
    visit(this.tops, NONE);
    return look;
  }

  _standFor(u, at, stands) {
    const left = [u];
    while (left.length) {
      const next = left.pop();
      stands[next] = at;
      left.push(...this.children[next]);
    }
  }

  /** Edges between what is seen, each with all tensors that it carries: of a call that is not open, those that it was given itself. */
  between({ stands, items }) {
    const found = new Map();
    for (const edge of this.edges) {
      const [from, to] = [stands[edge.source], stands[edge.target]];
      if (from < 0 || to < 0 || from === to) continue;
      if (edge.isAround && items[to].node !== edge.target) continue;
      const key = `${from} ${to}`;
      const known = found.get(key) ?? { from, to, tensors: [], around: [], targets: [], a: false, b: false, isKnown: false, learns: false };
      (edge.isAround ? known.around : known.tensors).push(edge.tensor);
      if (!edge.isAround) known.targets.push(edge.target);
      known[edge.side] = true;
      known.isKnown ||= edge.isKnown;
      known.learns ||= edge.learns;
      found.set(key, known);
    }
    for (const edge of found.values()) if (edge.around.length) edge.tensors = edge.around;
    return aside([...found.values()]);
  }
}

/** Masks, positions and the like, which many are given, would hide the way of the data: they stand aside, and are seen with whoever is chosen. */
function aside(edges) {
  const uses = new Map();
  for (const { from, learns } of edges) if (!learns) uses.set(from, (uses.get(from) ?? 0) + 1);
  for (const edge of edges) edge.isAside = !edge.learns && uses.get(edge.from) > FEW;
  return edges;
}

/** The members of a call, where there are many with runs folded into one: those around what is looked at stand alone. */
function folded(list, isNear, opened, box) {
  if (list.length <= MOST) return list.map((node) => ({ node }));
  const alone = new Uint8Array(list.length);
  const keep = (k) => (alone[Math.max(0, Math.min(list.length - 1, k))] = 1);
  [0, list.length - 1].forEach(keep);
  list.forEach((node, k) => {
    if (isNear.has(node)) for (let n = k - AROUND; n <= k + AROUND; n++) keep(n);
  });
  const found = [];
  const fold = (from, to) => {
    const id = `${box} ${list[from]} ${list[to - 1]}`;
    if (to - from === 1) found.push({ node: list[from] });
    else if (!opened.has(id)) found.push({ run: list.slice(from, to), id });
    else if (to - from <= MOST) for (let k = from; k < to; k++) found.push({ node: list[k] });
    else {
      const size = Math.ceil((to - from) / PARTS);
      for (let k = from; k < to; k += size) fold(k, Math.min(to, k + size));
    }
  };
  for (let from = 0; from < list.length;) {
    let to = from + 1;
    if (alone[from]) found.push({ node: list[from] });
    else {
      while (to < list.length && !alone[to]) to++;
      fold(from, to);
    }
    from = to;
  }
  return found;
}
