'use strict';
// Without this script the page is a plain table. A click on a heading sorts, the next one turns the order round, the third brings back the report's.
const tables = [...document.querySelectorAll('table.rows')];
for (const table of tables) {
  const body = table.tBodies[0], before = [...body.rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const key = row => {
      const cell = row.cells[column], value = cell.dataset.v;
      return value === undefined ? (cell.firstChild?.textContent ?? '').toLowerCase() : value && Number(value);
    };
    const text = before.some(row => key(row) !== '' && typeof key(row) === 'string');
    const orders = text ? ['ascending', 'descending'] : ['descending', 'ascending'];
    const button = document.createElement('button');
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const order = orders[orders.indexOf(head.getAttribute('aria-sort')) + 1];
      heads.forEach(other => other.removeAttribute('aria-sort'));
      let rows = before;
      if (order) {
        head.setAttribute('aria-sort', order);
        const sign = order === 'ascending' ? 1 : -1;
        // What is not known stands last in either order.
        const known = before.filter(row => key(row) !== ''), unknown = before.filter(row => key(row) === '');
        known.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * sign);
        rows = [...known, ...unknown];
      }
      body.append(...rows);
    };
  });
}

const flame = document.getElementById('frames');
const frames = flame ? [...flame.children].map(span => {
  const of = name => Number(span.style.getPropertyValue(name));
  // Name and module; the tooltip's third line has figures. The shown name may be no part of the whole one.
  const text = [...span.title.split('\n', 2), span.textContent].join(' ').toLowerCase();
  return { span, x: of('--x'), w: of('--w'), text };
}) : [];
// Places and widths have six digits.
const near = 2e-6;
const zoom = (x, w) => {
  flame.style.setProperty('--x0', x);
  flame.style.setProperty('--w0', w);
  for (const f of frames) f.span.classList.toggle('out', f.x + f.w <= x + near || f.x >= x + w - near);
};
if (flame) {
  document.getElementById('how').hidden = false;
  flame.onclick = event => {
    const f = frames.find(f => f.span === event.target);
    if (!f) return;
    const again = Number(flame.style.getPropertyValue('--x0')) === f.x && Number(flame.style.getPropertyValue('--w0')) === f.w;
    again ? zoom(0, 1) : zoom(f.x, f.w);
  };
  document.addEventListener('keydown', event => { if (event.key === 'Escape') zoom(0, 1); });
}

// Every word must be in the name or in the module, large and small letters alike.
const find = document.getElementById('find'), box = find.querySelector('input'), said = find.querySelector('output');
find.hidden = false;
const search = () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(word => word);
  const has = text => words.every(word => text.includes(word));
  let shown = 0, all = 0;
  for (const table of tables) for (const row of table.tBodies[0].rows) {
    const name = row.cells[0];
    row.hidden = !has([name.title, ...[...name.childNodes].map(node => node.textContent)].join(' ').toLowerCase());
    if (table === tables[0]) { all += 1; shown += row.hidden ? 0 : 1; }
  }
  // Frames come callers first, after the root, which is no function: one inside a frame that matched is not counted again.
  let share = 0, end = -1;
  for (const f of frames.slice(1)) {
    const hit = words.length > 0 && has(f.text);
    f.span.classList.toggle('hit', hit);
    if (hit && f.x >= end - near) { share += f.w; end = f.x + f.w; }
  }
  const least = flame && 'cut' in flame.dataset ? 'at least ' : '';
  said.textContent = words.length === 0 ? '' : shown + ' of ' + all + ' rows' + (flame ? ', on the stacks of ' + least + (share * 100).toFixed(1) + ' % of the ' + flame.dataset.of : '');
};
box.oninput = search;
