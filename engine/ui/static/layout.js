// Layers for a graph: where each task stands, and the way of each edge. A task's layer is the
// longest way to it from a source; back-edges of loops do not count. Edges over several layers bend
// at places of their own. Within a layer, tasks are ordered by the middle of their neighbours.

const SWEEPS = 8;

/** {layers: [[place]], ways: [{way: [place], back}] by edge}; a place is of a task or of an edge's
 *  bend, with its layer and its order there. */
export function layered(count, edges) {
  const forward = withoutCycles(count, edges);
  const layerOf = longestWays(count, forward);
  const layers = Array.from({ length: Math.max(0, ...layerOf) + 1 }, () => []);
  const places = layerOf.map((layer, task) => ({ task, layer, near: [[], []] }));
  places.forEach((place) => layers[place.layer].push(place));
  const ways = edges.map((edge, index) => {
    let [from, to] = [places[edge.producer], places[edge.consumer]];
    const back = !forward.includes(edge);
    if (back) [from, to] = [to, from];
    const way = [from];
    for (let layer = from.layer + 1; layer < to.layer; layer++) {
      const bend = { edge: index, layer, near: [[], []] };
      layers[layer].push(bend);
      way.push(bend);
    }
    way.push(to);
    for (let i = 1; i < way.length; i++) {
      way[i - 1].near[1].push(way[i]);
      way[i].near[0].push(way[i - 1]);
    }
    return { way: back ? way.reverse() : way, back };
  });
  order(layers);
  return { layers, ways };
}

function withoutCycles(count, edges) {
  const state = new Array(count).fill(0);
  const forward = new Set(edges);
  const visit = (task) => {
    state[task] = 1;
    for (const edge of edges) {
      if (edge.producer !== task) continue;
      if (state[edge.consumer] === 1) forward.delete(edge);
      else if (state[edge.consumer] === 0) visit(edge.consumer);
    }
    state[task] = 2;
  };
  const fed = new Set(edges.map((edge) => edge.consumer));
  for (let task = 0; task < count; task++) if (!fed.has(task) && !state[task]) visit(task);
  for (let task = 0; task < count; task++) if (!state[task]) visit(task);
  return [...forward];
}

function longestWays(count, edges) {
  const layer = new Array(count).fill(0);
  for (let round = 0; round < count; round++) {
    let moved = false;
    for (const { producer, consumer } of edges) {
      if (layer[consumer] <= layer[producer]) {
        layer[consumer] = layer[producer] + 1;
        moved = true;
      }
    }
    if (!moved) break;
  }
  // A source stands just before its first consumer.
  for (let task = 0; task < count; task++) {
    const next = edges.filter((edge) => edge.producer === task).map((edge) => edge.consumer);
    if (next.length && !edges.some((edge) => edge.consumer === task)) {
      layer[task] = Math.max(0, Math.min(...next.map((consumer) => layer[consumer])) - 1);
    }
  }
  return layer;
}

function order(layers) {
  const number = (layer) => layer.forEach((place, at) => (place.order = at - layer.length / 2));
  layers.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const side = sweep % 2;
    const turn = side === 0 ? layers : [...layers].reverse();
    for (const layer of turn) {
      for (const place of layer) {
        const near = place.near[side];
        place.wish = near.length
          ? near.reduce((sum, other) => sum + other.order, 0) / near.length
          : place.order;
      }
      layer.sort((a, b) => a.wish - b.wish);
      number(layer);
    }
  }
}
